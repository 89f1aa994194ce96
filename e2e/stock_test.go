package e2e

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// TestLastUnits sends one hundred orders at once for ten units, to two order and
// three inventory processes. (B84)
func TestLastUnits(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Clients: 100, Env: []string{"BATON_PREFETCH=20"}})
	s.Start()
	s.StartOrder()
	s.StartInventory()
	s.StartInventory()
	s.Place(100, events.Item{SKU: "SKU-RARE", Quantity: 1})
	s.Settled()
	s.Exact()

	var reserved, rejected, left int
	const count = `select count(*) filter (where status = 'reserved'), count(*) filter (where status = 'rejected') from orders`
	if err := s.OrderDB.QueryRow(t.Context(), count).Scan(&reserved, &rejected); err != nil {
		t.Fatal(err)
	}
	const stock = `select on_hand - reserved from stock where sku = 'SKU-RARE'`
	if err := s.InventoryDB.QueryRow(t.Context(), stock).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if reserved != 10 || rejected != 90 || left != 0 {
		t.Errorf("%d reserved, %d rejected, %d left; want 10, 90 and 0", reserved, rejected, left)
	}
}

// TestCopiesAtTwoConsumers has every event arrive twice, one copy right behind
// the other, for two inventory processes that take turns. (B42)
func TestCopiesAtTwoConsumers(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Env: []string{"BATON_PREFETCH=1"}})
	order, one := s.Start()
	other := s.StartInventory()
	order.Stop()
	mute := s.StartOrder(noBroker)
	const orders = 200
	s.Place(orders)
	mute.Stop()
	ch := testenv.Channel(t, s.Vhost)
	rows, err := s.OrderDB.Query(t.Context(), `select event_id, payload::text from outbox_messages`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, payload string
		if err := rows.Scan(&id, &payload); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			msg := amqp.Publishing{MessageId: id, Type: events.OrderCreated, Body: []byte(payload), DeliveryMode: amqp.Persistent}
			if err := ch.PublishWithContext(t.Context(), events.OrderExchange, events.OrderCreated, true, false, msg); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "the second copies are absorbed", func() error {
		return testenv.Want(one.Absorbed()+other.Absorbed(), orders)
	})
	for _, p := range []*system.Process{one, other} {
		if n := p.Metric("baton_consumer_retried_total") + p.Metric("baton_consumer_dead_lettered_total"); n > 0 {
			t.Errorf("%s had trouble with %v copies", p.Name, n)
		}
	}
	order.Restart() // and sends them a third time
	s.Settled()
	s.Exact()
}

// TestCancelMeetsCreate has both events of an order reach two inventory processes
// at the same time, which may take them in either order, two hundred times.
func TestCancelMeetsCreate(t *testing.T) {
	t.Parallel()
	// One delivery in hand makes the broker hand every other one to the other.
	s := system.New(t, system.Options{Env: []string{"BATON_PREFETCH=1"}})
	order, _ := s.Start()
	s.StartInventory()
	order.Stop()
	// Both events are in the outbox before either is sent, one behind the other.
	mute := s.StartOrder(noBroker)
	const orders = 200
	for range orders {
		for _, o := range s.Place(1) {
			if !s.Cancel(o) {
				t.Errorf("order %s was not cancelled", o.OrderID)
			}
		}
	}
	mute.Stop()
	order.Restart()
	s.Settled()
	s.Exact()

	var first, released, reserved int
	const count = `select count(*) filter (where state = 'cancelled_first'), count(*) filter (where state = 'released'),
		(select sum(reserved) from stock) from inventory_orders`
	if err := s.InventoryDB.QueryRow(t.Context(), count).Scan(&first, &released, &reserved); err != nil {
		t.Fatal(err)
	}
	t.Logf("the cancellation came first %d times and second %d times", first, released)
	if first+released != orders || reserved != 0 {
		t.Errorf("%d orders are cancelled and %d units reserved, want %d and none", first+released, reserved, orders)
	}
}
