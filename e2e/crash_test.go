package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// again says how often a crash makes what was in hand arrive.
type again string

const (
	never  again = "never"         // nothing that was in hand arrives twice
	some   again = "at least once" // something does; not all of it need have left
	always again = "all of it"     // everything that was in hand does
	maybe  again = "maybe"         // depends on what was on its way in the last moment
)

// crashes are the steps at which a process can die between the acceptance of an
// order and the last acknowledgement, in the order of the flow. Where a message
// has to fail first, the tests below have them.
var crashes = []struct {
	service, step string
	hits          int // calls at the step that pass before
	again         again
}{
	// The order's way out. The first hit of order.committed is the first order of
	// all, while the relay still sleeps: later, it might just have sent the very
	// row that is in hand.
	{"order", "order.committed", 0, never},
	{"order", "relay.claimed", 5, never},
	{"order", "relay.sent", 60, some},
	{"order", "relay.confirmed", 5, always},
	{"order", "relay.settled", 5, never},
	{"inventory", "consumer.received", 5, maybe},
	{"inventory", "consumer.committed", 5, always},
	{"inventory", "consumer.acked", 5, maybe},
	// The answer's way back.
	{"inventory", "relay.claimed", 5, never},
	{"inventory", "relay.sent", 60, some},
	{"inventory", "relay.confirmed", 5, always},
	{"inventory", "relay.settled", 5, never},
	{"order", "consumer.received", 5, maybe},
	{"order", "consumer.committed", 5, always},
	{"order", "consumer.acked", 5, maybe},
}

// TestCrash kills a service by SIGKILL at a step, under load and with work in
// hand, and starts it again.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, c := range crashes {
		t.Run(c.service+"/"+c.step, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{})
			order, inventory := s.Start()
			victim, other := order, inventory
			if c.service == "inventory" {
				victim, other = inventory, order
			}

			if c.step == "relay.sent" {
				slowSettler(victim)
			}
			victim.Arm(faults.Fault{Step: c.step, Action: faults.Crash, After: c.hits})
			load := s.Load(100)
			inHand := victim.WaitCrash(c.step)
			victim.Restart()
			accepted := load.Stop()
			s.Settled()
			s.Exact()

			t.Logf("%d orders, %d events in hand at the crash, %d messages sent again", len(accepted), len(inHand), s.Extra())
			if isConsumer(c.step) {
				checkAbsorbed(t, c.again, len(inHand), victim)
			} else {
				checkCopies(t, c.again, inHand, s, other)
			}
			if c.step == "order.committed" {
				checkRepeated(t, accepted, inHand[0])
			}
		})
	}
}

// slowSettler has a relay wait before it writes down its next confirms. The very
// last message before a SIGKILL may be lost with the socket; this way there are
// others that have reached the broker and are not settled.
func slowSettler(p *system.Process) {
	p.Arm(faults.Fault{Step: "relay.confirmed", Action: faults.Delay, Delay: faults.Duration(time.Second), After: 3})
}

func isConsumer(step string) bool { return strings.HasPrefix(step, "consumer.") }

// checkAbsorbed looks at a consumer that has handled again, or not, what its
// dead predecessor had in hand.
func checkAbsorbed(t *testing.T, want again, inHand int, consumer *system.Process) {
	t.Helper()
	switch got := consumer.Absorbed(); {
	case want == always && got < inHand:
		t.Errorf("%d duplicates absorbed, want at least the %d that were in hand", got, inHand)
	case want == never && got > 0:
		t.Errorf("%d duplicates absorbed, want none", got)
	}
}

// checkCopies looks at how often the broker got what a relay had in hand when it
// died, and that the consumer on the other side has absorbed all of that.
func checkCopies(t *testing.T, want again, inHand []string, s *system.System, consumer *system.Process) {
	t.Helper()
	copies, extra := s.Copies(), s.Extra()
	for _, id := range inHand {
		switch n := copies[id]; {
		case n == 0:
			t.Errorf("event %s was in hand and has never reached the broker", id)
		case want == never && n > 1:
			t.Errorf("event %s has reached the broker %d times, want once", id, n)
		case want == always && n < 2:
			t.Errorf("event %s has reached the broker once, want a copy", id)
		}
	}
	if want == some && extra == 0 {
		t.Error("no message was sent again, want at least one")
	}
	testenv.Eventually(t, 10*time.Second, "every copy absorbed", func() error {
		if got := consumer.Absorbed(); got < extra {
			return fmt.Errorf("%d absorbed of %d", got, extra)
		}
		return nil
	})
}

// checkRepeated finds the client whose answer was lost: it has asked again with
// its Idempotency-Key and got the order that was stored before the crash.
func checkRepeated(t *testing.T, accepted []system.Order, eventID string) {
	t.Helper()
	for _, o := range accepted {
		if o.EventID == eventID {
			if o.Tries < 2 {
				t.Errorf("the client of %s got its answer at the first try, want that it was lost", o.OrderID)
			}
			return
		}
	}
	t.Errorf("no client has got the order with event %s, whose answer was lost", eventID)
}

// TestCrashBeforeCommit kills the order service while the database holds the
// transaction of a request. Whatever becomes of it, the client's repetition gets
// the one order.
func TestCrashBeforeCommit(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order, _ := s.Start()
	s.Place(1)

	tx, err := s.OrderDB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `lock table idempotency_keys in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	placing := s.Placing(10)
	testenv.Eventually(t, 30*time.Second, "requests that wait for the lock", func() error {
		var n int
		err := s.OrderDB.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&n)
		// Some wait in the database, and the others for those.
		if inHand := order.Metric("baton_http_requests_in_hand") - 1; err == nil && (n == 0 || inHand < 10) {
			err = fmt.Errorf("%d transactions wait, and %.0f requests", n, inHand)
		}
		return err
	})
	order.Kill()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	order.Restart()
	for _, o := range placing.Wait() {
		if o.Tries < 2 {
			t.Errorf("order %s was accepted at the first try, by a process that was killed before its commit", o.OrderID)
		}
	}
	s.Settled()
	s.Exact()
}

// TestCrashAfterCancel kills the order service when a cancellation is committed
// and not answered. The client asks again, and there is one event.
func TestCrashAfterCancel(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order, _ := s.Start()
	orders := s.Place(20)
	s.Settled()

	order.Arm(faults.Fault{Step: "order.committed", Action: faults.Crash, After: 3})
	cancelled := make(chan bool)
	for _, o := range orders {
		go func() { cancelled <- s.Cancel(o) }()
	}
	inHand := order.WaitCrash("order.committed")
	order.Restart()
	for range orders {
		if !<-cancelled {
			t.Error("an order was not cancelled")
		}
	}
	s.Settled()
	s.Exact()
	if n := s.Copies()[inHand[0]]; n != 1 {
		t.Errorf("the event in hand at the crash was sent %d times, want once", n)
	}
	for _, sku := range []string{"SKU-1", "SKU-2", "SKU-3"} {
		var reserved int
		if err := s.InventoryDB.QueryRow(t.Context(), `select reserved from stock where sku = $1`, sku).Scan(&reserved); err != nil || reserved != 0 {
			t.Errorf("%d of %s are reserved (%v) after all orders were cancelled", reserved, sku, err)
		}
	}
}

// TestCrashOnClassicQueues is about the lesser queue: a process may die, and
// only the broker may not.
func TestCrashOnClassicQueues(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Env: []string{"QUEUE_TYPE=classic"}})
	order, inventory := s.Start()
	slowSettler(order)
	order.Arm(faults.Fault{Step: "relay.sent", Action: faults.Crash, After: 60})
	inventory.Arm(faults.Fault{Step: "consumer.committed", Action: faults.Crash, After: 5})
	load := s.Load(100)
	order.WaitCrash("relay.sent")
	order.Restart() // or nothing more would come in
	inventory.WaitCrash("consumer.committed")
	inventory.Restart()
	load.Stop()
	s.Settled()
	s.Exact()
	if s.Extra() == 0 {
		t.Error("no message was sent again, want at least one")
	}
}
