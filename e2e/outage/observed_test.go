package outage

import (
	"net/http"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// Every message that is given up is worth one line at level error and a number,
// and waits for a person, who can have it sent after all.
func TestFailedRowsAreSeen(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order := s.StartOrder() // and nobody has bound a queue to its exchange
	placed := s.Place(3)
	testenv.Eventually(t, 20*time.Second, "each event is unroutable", func() error {
		n, err := order.ReadMetric(`baton_relay_outcomes_total{outcome="unroutable"}`)
		if err == nil && n < 3 {
			err = testenv.Want(n, 3)
		}
		return err
	})
	// Half an hour later:
	if _, err := s.OrderDB.Exec(t.Context(), `update outbox_messages set attempt_count = 11, next_attempt_at = now() where failed_at is null`); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "each event is given up", func() error {
		n, err := order.ReadMetric(`baton_outbox_rows{status="Failed"}`)
		if err != nil {
			return err
		}
		return testenv.Want(n, 3)
	})
	if n, err := order.ReadMetric("baton_relay_failed_total"); err != nil || n != 3 {
		t.Errorf("baton_relay_failed_total is %v (%v), want 3", n, err)
	}
	eventuallyReady(t, 10*time.Second, order, http.StatusOK, "degraded", "3 messages have failed", "./baton outbox list")
	logged := errorsLogged(order)
	for _, o := range placed {
		if logged[o.EventID] != 1 {
			t.Errorf("%d lines at level error about the failed event %s, want 1", logged[o.EventID], o.EventID)
		}
	}
	if len(logged) != 3 {
		t.Errorf("errors were logged about %v, want the 3 events", logged)
	}

	s.StartInventory()
	if _, err := outbox.Requeue(t.Context(), s.OrderDB); err != nil {
		t.Fatal(err)
	}
	s.Settled()
	s.Exact()
}

// Every dead letter is worth one line at level error and a number, and keeps
// what it was.
func TestDeadLettersAreSeen(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	_, inventory := s.Start()
	bad := map[string]string{"bad-1": "{", "bad-2": `{"eventId":"other"}`, "bad-3": "null"}
	var ids []string
	for id, body := range bad {
		ids = append(ids, id)
		s.Publish(events.OrderExchange, events.OrderCreated, amqp.Publishing{MessageId: id, Type: events.OrderCreated, Body: []byte(body)})
	}
	s.Place(20)
	testenv.Eventually(t, 20*time.Second, "three dead letters", func() error {
		n, err := inventory.ReadMetric("baton_consumer_dead_lettered_total")
		if err != nil {
			return err
		}
		return testenv.Want(n, 3)
	})
	s.Settled()
	s.Exact(ids...)
	for _, d := range s.Dead(system.InventoryQueue) {
		if string(d.Body) != bad[d.MessageId] {
			t.Errorf("dead letter %s is %q, want %q", d.MessageId, d.Body, bad[d.MessageId])
		}
	}
	logged := errorsLogged(inventory)
	for _, id := range ids {
		if logged[id] != 1 {
			t.Errorf("%d lines at level error about the dead letter %s, want 1", logged[id], id)
		}
	}
	if len(logged) != 3 {
		t.Errorf("errors were logged about %v, want the 3 dead letters", logged)
	}
}

// A message that comes again is counted, and changes nothing.
func TestDuplicatesAreSeen(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	_, inventory := s.Start()
	s.Place(20)
	s.Settled()
	before := inventory.Absorbed()
	rows, err := s.OrderDB.Query(t.Context(), `select event_id, event_type, payload::text from outbox_messages`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	sent := 0
	for rows.Next() {
		var id, kind, payload string
		if err := rows.Scan(&id, &kind, &payload); err != nil {
			t.Fatal(err)
		}
		s.Publish(events.OrderExchange, kind, amqp.Publishing{MessageId: id, Type: kind, Body: []byte(payload)})
		sent++
	}
	testenv.Eventually(t, 20*time.Second, "every copy absorbed", func() error {
		return testenv.Want(inventory.Absorbed()-before, sent)
	})
	s.Settled()
	s.Exact()
}
