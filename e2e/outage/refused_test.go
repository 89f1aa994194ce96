package outage

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// standing is where the rows of an outbox stand.
type standing struct{ Published, Open, Refused int }

func stand(t *testing.T, s *system.System, reason string) (now standing, err error) {
	t.Helper()
	const count = `
select count(*) filter (where status = 'Published'), count(*) filter (where status <> 'Published'),
       count(*) filter (where status <> 'Published' and last_error ~ $1) from outbox_messages`
	err = s.OrderDB.QueryRow(t.Context(), count, reason).Scan(&now.Published, &now.Open, &now.Refused)
	return now, err
}

// B20: orders come in at once while no queue is bound. The broker acknowledges
// what it returns, and none of it counts as delivered; bound again, all arrive.
func TestNoQueueBound(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Clients: 50})
	s.Start()
	ch := testenv.Channel(t, s.Vhost)
	if _, err := ch.QueueDelete("tap", false, false, false); err != nil {
		t.Fatal(err)
	}
	const orders = 200
	for round := range int(lasts(2, 20)) {
		if err := ch.QueueUnbind(system.InventoryQueue, events.OrderCreated, events.OrderExchange, nil); err != nil {
			t.Fatal(err)
		}
		s.Place(orders)
		testenv.Eventually(t, time.Minute, "each row says that there is no route", func() error {
			now, err := stand(t, s, "unroutable")
			return errors.Join(err, testenv.Want(now, standing{round * orders, orders, orders}))
		})
		if err := ch.QueueBind(system.InventoryQueue, events.OrderCreated, events.OrderExchange, false, nil); err != nil {
			t.Fatal(err)
		}
		s.Settled()
	}
	s.Exact()
}

// B23: a queue is full and the broker refuses what is more. Only what it took
// counts as delivered; the rest goes when there is room.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	_, inventory := s.Start()
	inventory.Stop()
	limit := map[string]any{
		"pattern": "^" + system.InventoryQueue + "$", "apply-to": "queues",
		"definition": map[string]any{"max-length": 3, "overflow": "reject-publish"},
	}
	if err := s.Broker.Do(t.Context(), http.MethodPut, "/policies/{vhost}/full", limit, nil); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "the queue has its limit", func() error {
		var queue struct{ Policy string }
		err := s.Broker.Do(t.Context(), http.MethodGet, "/queues/{vhost}/"+system.InventoryQueue, nil, &queue)
		return errors.Join(err, testenv.Want(queue.Policy, "full"))
	})
	for range 10 {
		s.Place(1) // a queue notices that it is full when a message is in it
	}
	var now standing
	testenv.Eventually(t, 20*time.Second, "the broker has answered for each", func() (err error) {
		now, err = stand(t, s, "refused")
		if err == nil && (now.Open == 0 || now.Refused != now.Open) {
			err = fmt.Errorf("%+v", now)
		}
		return err
	})
	depth, err := testenv.QueueDepth(s.Vhost, system.InventoryQueue)
	if err != nil {
		t.Fatal(err)
	}
	// How far a queue goes past its limit before its publishers hear of it is
	// the broker's affair; that Published is what it holds is ours.
	if depth != now.Published {
		t.Errorf("%d rows are Published and %d messages in the queue, want as many", now.Published, depth)
	}
	if err := s.Broker.Do(t.Context(), http.MethodDelete, "/policies/{vhost}/full", nil, nil); err != nil {
		t.Fatal(err)
	}
	inventory.Restart()
	// A publisher that was told of a full queue may have to ask anew, and a row
	// that was refused waits longer each time.
	testenv.Eventually(t, 2*time.Minute, "everything has left", func() error {
		now, err := stand(t, s, "refused")
		return errors.Join(err, testenv.Want(now.Open, 0))
	})
	s.Settled()
	s.Exact()
}

// B07, B09: more rows than fit in a batch cannot be sent, and they are the
// oldest. Others leave past them, and they cost next to nothing: each waits
// longer and longer, and says why.
func TestUnsendableRowsAreCheap(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order, _ := s.Start()
	const bad = 505
	const insertSQL = `
insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, created_at, next_attempt_at)
select 'bad-' || n, 'bad-' || n, 1, 'nobody.wants.it', '{}', now(), now() - interval '1 hour', now() - interval '1 hour'
from generate_series(1, $1::int) n`
	if _, err := s.OrderDB.Exec(t.Context(), insertSQL, bad); err != nil {
		t.Fatal(err)
	}
	good := s.Place(50)
	var ids []string
	for _, o := range good {
		ids = append(ids, o.EventID)
	}
	accepted := time.Now()
	testenv.Eventually(t, time.Minute, "the others have left", func() error {
		var left int
		err := s.OrderDB.QueryRow(t.Context(), `select count(*) from outbox_messages where event_id = any ($1) and published_at is null`, ids).Scan(&left)
		return errors.Join(err, testenv.Want(left, 0))
	})
	t.Logf("the others have left after %s", time.Since(accepted))

	// From the third attempt of each on they wait for 4 seconds and longer.
	const attemptsSQL = `
select min(attempt_count), sum(attempt_count), count(*) filter (where last_error ~ 'unroutable' and next_attempt_at > now() and status = 'Pending')
from outbox_messages where event_type = 'nobody.wants.it'`
	attempts := func() (least, all, waiting int) {
		t.Helper()
		if err := s.OrderDB.QueryRow(t.Context(), attemptsSQL).Scan(&least, &all, &waiting); err != nil {
			t.Fatal(err)
		}
		return least, all, waiting
	}
	testenv.Eventually(t, time.Minute, "each has failed three times", func() error {
		least, _, waiting := attempts()
		if least < 3 || waiting < bad {
			return fmt.Errorf("at least %d attempts, %d of %d wait", least, waiting, bad)
		}
		return nil
	})
	cpu, lines := order.Metric("process_cpu_seconds_total"), len(records(order))
	_, before, _ := attempts()
	while := lasts(15*time.Second, time.Minute)
	pause(t, while)
	_, after, _ := attempts()
	if n := len(records(order)) - lines; n > after-before+10 {
		t.Errorf("%d lines were logged for %d attempts", n, after-before)
	}
	if used := order.Metric("process_cpu_seconds_total") - cpu; used > while.Seconds()/5 {
		t.Errorf("the order service has used %.1f s of CPU in %s", used, while)
	}
	// 4, 8, 16, 32 seconds apart, give or take a fifth.
	if most := bad * int(lasts(3, 4)); after-before > most {
		t.Errorf("%d attempts in %s, want at most %d", after-before, while, most)
	}
	if _, err := s.OrderDB.Exec(t.Context(), `delete from outbox_messages where event_type = 'nobody.wants.it'`); err != nil {
		t.Fatal(err)
	}
	s.Settled()
	s.Exact()
}
