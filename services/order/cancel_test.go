package order

import (
	"net/http"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/shared/events"
)

func TestCancel(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := f.placeOrder(t)
	a := f.cancelOrder(t, o.OrderID)
	got := a.order(t)
	want := o
	want.Status, want.UpdatedAt = "cancelled", got.UpdatedAt
	if diff := cmp.Diff(want, got); a.status != http.StatusOK || diff != "" {
		t.Fatalf("%d (-want +got):\n%s", a.status, diff)
	}
	if got.UpdatedAt.Before(o.CreatedAt.Time) {
		t.Errorf("cancelled at %s, before it was placed at %s", got.UpdatedAt, o.CreatedAt)
	}
	var payload string
	if err := f.db.QueryRow(t.Context(), `select payload::text from outbox_messages where aggregate_id = $1 and sequence = 2`, o.OrderID).Scan(&payload); err != nil {
		t.Fatal(err)
	}
	e, err := events.Decode([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	wantEvent := events.Event{EventID: e.EventID, EventType: "order.cancelled", OccurredAt: got.UpdatedAt, OrderID: o.OrderID, Sequence: 2}
	if diff := cmp.Diff(wantEvent, e); diff != "" || e.EventID <= o.EventID {
		t.Errorf("event %s after %s (-want +got):\n%s", e.EventID, o.EventID, diff)
	}
	// The same answer again, and what the GET says.
	if again := f.cancelOrder(t, o.OrderID); again.status != http.StatusOK || string(again.body) != string(a.body) {
		t.Errorf("again: %d %s, want 200 %s", again.status, again.body, a.body)
	}
	if diff := cmp.Diff(got, f.get(t, "/orders/"+o.OrderID).order(t)); diff != "" {
		t.Errorf("GET (-cancelled +got):\n%s", diff)
	}
}

// Cancels at the same moment are one: one event, one body.
func TestCancelsAtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := f.placeOrder(t)
	// All are under way before the first can go on.
	tx, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from orders for update`); err != nil {
		t.Fatal(err)
	}
	answers := make([]answered, 10)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = f.cancelOrder(t, o.OrderID) })
	}
	f.waitForLocks(t, len(answers))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	for i, a := range answers {
		if a.status != http.StatusOK || string(a.body) != string(answers[0].body) {
			t.Errorf("cancel %d: %d %s, want 200 %s", i, a.status, a.body, answers[0].body)
		}
	}
	if n := f.count(t, `select count(*) from outbox_messages where event_type = 'order.cancelled'`); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestCancelByState(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, tt := range []struct {
		status     string
		want       int
		wantEvents int
	}{
		{"created", 200, 1},
		{"reserved", 200, 1},
		{"rejected", 409, 0},
		{"cancelled", 200, 0},
	} {
		o := f.placeOrder(t)
		if _, err := f.db.Exec(t.Context(), `update orders set status = $2, reason = 'out of stock' where order_id = $1`, o.OrderID, tt.status); err != nil {
			t.Fatal(err)
		}
		a := f.cancelOrder(t, o.OrderID)
		events := f.count(t, `select count(*) from outbox_messages where aggregate_id = $1 and event_type = 'order.cancelled'`, o.OrderID)
		if a.status != tt.want || events != tt.wantEvents {
			t.Errorf("%s: %d %s and %d events, want %d and %d", tt.status, a.status, a.body, events, tt.want, tt.wantEvents)
		}
	}
	if a := f.cancelOrder(t, "ORD-20260715-000001"); a.status != http.StatusNotFound {
		t.Errorf("unknown order: %d, want 404", a.status)
	}
}

func TestCancelTakesNoBody(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := f.placeOrder(t)
	if a := f.do(t, http.MethodPost, "/orders/"+o.OrderID+"/cancel", `{"reason":"x"}`, "Content-Type", "application/json"); a.status != http.StatusBadRequest {
		t.Errorf("got %d %s, want 400", a.status, a.body)
	}
	if got := f.get(t, "/orders/"+o.OrderID).order(t).Status; got != "created" {
		t.Errorf("the order is %s, want created", got)
	}
}
