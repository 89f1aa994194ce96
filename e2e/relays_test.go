package e2e

import (
	"os"
	"testing"
	"time"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// TestRelaysStartTogether has three processes start at the same moment on a
// backlog. They share it, and nothing is sent twice. (B05)
func TestRelaysStartTogether(t *testing.T) {
	t.Parallel()
	rounds := 1
	if os.Getenv("BATON_NIGHTLY") == "1" {
		rounds = 5
	}
	// No lease runs out on a busy machine.
	s := system.New(t, system.Options{Lease: time.Minute})
	order, _ := s.Start()
	order.Stop()
	for range rounds {
		mute := s.StartOrder(noBroker)
		backlog := s.Place(2000)
		mute.Stop()
		relays := []*system.Process{s.OrderProcess(), s.OrderProcess(), s.OrderProcess()}
		// A service begins its work when it has read the version of its schema.
		version, err := s.OrderDB.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := version.Exec(t.Context(), `lock table goose_db_version in access exclusive mode`); err != nil {
			t.Fatal(err)
		}
		for _, p := range relays {
			p.Launch()
		}
		if err := version.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Settled()
		total := 0.0
		for _, p := range relays {
			n := p.Metric(`baton_relay_outcomes_total{outcome="published"}`)
			t.Logf("%s has sent %v", p.Name, n)
			total += n
			p.Stop()
		}
		if total != float64(len(backlog)) {
			t.Errorf("%v messages were sent, want %d", total, len(backlog))
		}
	}
	s.Exact()
	if extra := s.Extra(); extra > 0 {
		t.Errorf("%d messages were sent twice", extra)
	}
}

// TestLaterRowsFirst holds the orders back in one relay while another sends what
// came after them, their cancellations. Order across rows is not promised, and
// the outcome is the same. (B18)
func TestLaterRowsFirst(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Lease: 2 * time.Minute})
	order, _ := s.Start()
	order.Stop()
	mute := s.StartOrder(noBroker)
	placed := s.Place(5)
	mute.Stop()
	var ids []string
	for _, o := range placed {
		ids = append(ids, o.EventID)
	}
	order.RestartArmed(faults.Fault{Step: "relay.claimed", Action: faults.Stop})
	if held := order.WaitStopped("relay.claimed"); len(held) != len(ids) {
		t.Fatalf("%d rows are held back, want %d", len(held), len(ids))
	}
	s.StartOrder()
	for _, o := range placed {
		if !s.Cancel(o) {
			t.Errorf("order %s was not cancelled", o.OrderID)
		}
	}
	testenv.Eventually(t, time.Minute, "the cancellations have arrived", func() error {
		var first int
		if err := s.InventoryDB.QueryRow(t.Context(), `select count(*) from inventory_orders where state = 'cancelled_first'`).Scan(&first); err != nil {
			return err
		}
		return testenv.Want(first, len(placed))
	})
	order.Thaw()
	s.Settled()
	s.Exact() // copies there may be: the broker hangs up on a process that is stopped for long
}
