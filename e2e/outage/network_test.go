package outage

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/proxy"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// B31: the connections to the broker are half-open all at once: neither side
// hears of it, and new ones can be made. Both notice by their heartbeats; no
// consumer is left over at the broker, which would be given messages for ever.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	via, orderURL := testenv.Proxy(t, testenv.VhostUser(t, s.Vhost, provision.OrderUser))
	inventoryVia, inventoryURL := testenv.Proxy(t, testenv.VhostUser(t, s.Vhost, provision.InventoryUser))
	order := s.OrderProcess("ORDER_AMQP_URL=" + orderURL)
	order.Launch()
	inventory := s.StartInventory("INVENTORY_AMQP_URL=" + inventoryURL)
	processes := []*system.Process{order, inventory}
	listed(t, s, len(processes))
	s.Place(20)
	s.Settled()

	if n := via.Lose() + inventoryVia.Lose(); n != 3*len(processes) {
		t.Errorf("%d connections are half-open, want %d", n, 3*len(processes))
	}
	wantAtOnce(t, s.Place(50))
	pause(t, lasts(0, 5*time.Minute))
	s.Settled()
	s.Exact()
	for _, p := range processes {
		if !logged(p, "trying again") {
			t.Errorf("%s has not noticed that it lost the broker", p.Name)
		}
	}
	testenv.Eventually(t, time.Minute, "one consumer at each queue, and no connection of before", func() error {
		queues, err := s.Broker.Queues(t.Context())
		n, connErr := connections(t, s)
		return errors.Join(err, connErr, testenv.Want(n, 3*len(processes)),
			testenv.Want([2]int{queues[system.InventoryQueue].Consumers, queues[system.OrderQueue].Consumers}, [2]int{1, 1}))
	})
}

// B06: a batch whose confirms come slowly takes longer than its lease if it is
// sent message by message, and no relay sends what another still has in hand.
func TestSlowBroker(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Lease: 5 * time.Second})
	mute, _ := s.Start()
	mute.Stop()
	behind := s.StartOrder("ORDER_AMQP_URL=amqp://nobody@127.0.0.1:1/")
	placed := s.Place(300)
	behind.Stop()
	via, through := testenv.Proxy(t, testenv.VhostUser(t, s.Vhost, provision.OrderUser))
	via.Delay(150 * time.Millisecond)
	relays := []*system.Process{s.OrderProcess("ORDER_AMQP_URL=" + through), s.OrderProcess("ORDER_AMQP_URL=" + through)}
	for _, p := range relays {
		p.Launch()
	}
	s.Settled()
	s.Exact()
	if n := s.Extra(); n > 10 {
		t.Errorf("%d of %d messages were sent again", n, len(placed))
	}
}

// B30: a relay is told to end while it waits for confirms that do not come. It
// ends in order and in time, whatever the moment, and what it had sent is sent
// again when its claims have run out.
func TestStopWithUnreadConfirms(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	_, inventory := s.Start()
	via, through := testenv.Proxy(t, testenv.VhostUser(t, s.Vhost, provision.OrderUser))
	deaf := s.StartOrder("ORDER_AMQP_URL=" + through)
	rounds := int(lasts(2, 20))
	for round := range rounds {
		testenv.Eventually(t, time.Minute, "its publisher is connected", func() error {
			r, err := ready(deaf)
			if err != nil {
				return err
			}
			return r.is(200, "ok")
		})
		via.Freeze(proxy.ToClient)
		s.Place(500 / rounds * 2) // half of them at the other order process
		pause(t, time.Duration(round)*500*time.Millisecond/time.Duration(max(rounds-1, 1)))
		deaf.Stop() // which holds it to 20 seconds and exit code 0
		via.Thaw(proxy.ToClient)
		via.Cut()
		deaf.Restart()
	}
	s.Settled()
	s.Exact()
	if s.Extra() == 0 || inventory.Absorbed() == 0 {
		t.Error("nothing was sent again: no confirm was due when the relay ended")
	}
}

// B37: one delivery waits for a locked row, those behind it are done, and the
// consumer is killed. No acknowledgement has spoken for the one that was open.
func TestKilledWithOneOpen(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Env: []string{"BATON_PREFETCH=10"}})
	_, inventory := s.Start()
	release := lock(t, s.InventoryDB, `select from stock where sku = 'SKU-1' for update`)
	s.Place(1, events.Item{SKU: "SKU-1", Quantity: 2})
	waitsForLock(t, s.InventoryDB)
	s.Place(9, events.Item{SKU: "SKU-2", Quantity: 1})
	testenv.Eventually(t, time.Minute, "the others are reserved and acknowledged", func() error {
		acked, err := inventory.ReadMetric("baton_consumer_acked_total")
		return errors.Join(err, testenv.Want(acked, 9))
	})
	inventory.Kill()
	release()
	inventory.Restart()
	s.Settled()
	s.Exact()
}

// B50: messages fail, each by its own fault, and wait for their next try, and the
// consumer is killed at any moment of it. There is no moment at which a message
// is on neither side: the way to the retry queue is the broker's. Mended, each is
// reserved once.
func TestKilledWhileMessagesFail(t *testing.T) {
	t.Parallel()
	wait := lasts(6*time.Second, 20*time.Second)
	s := system.New(t, system.Options{RetryTTL: wait})
	_, inventory := s.Start()
	const breakSQL = `
create function is_broken() returns trigger language plpgsql as
$$ begin raise exception 'broken' using errcode = 'check_violation'; end $$;
create trigger is_broken before insert on inventory_reservations execute function is_broken()`
	if _, err := s.InventoryDB.Exec(t.Context(), breakSQL); err != nil {
		t.Fatal(err)
	}
	s.Place(50)
	testenv.Eventually(t, time.Minute, "messages fail", func() error {
		n, err := inventory.ReadMetric("baton_consumer_retried_total")
		if err == nil && n == 0 {
			err = errors.New("none yet")
		}
		return err
	})
	// Four failures would make dead letters of them: no more than three.
	kills := 0
	for begin := time.Now(); kills < int(lasts(5, 20)) && time.Since(begin) < 2*wait; kills++ {
		inventory.Kill()
		inventory.Restart()
		pause(t, time.Duration(rand.Int64N(int64(400*time.Millisecond))))
	}
	t.Logf("killed %d times", kills)
	if _, err := s.InventoryDB.Exec(t.Context(), `drop trigger is_broken on inventory_reservations`); err != nil {
		t.Fatal(err)
	}
	s.Settled()
	s.Exact()
}
