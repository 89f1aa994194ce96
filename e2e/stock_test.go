package e2e

import (
	"testing"

	"example.com/baton/internal/system"
	"example.com/baton/shared/events"
)

// TestLastUnits sends one hundred orders at once for ten units, to two order and
// two inventory processes.
func TestLastUnits(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Clients: 100})
	s.Start()
	s.StartOrder()
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
