package order

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"example.com/baton/shared/events"
	"example.com/baton/shared/rabbit"
)

// answerTo is a delivery of what inventory answers to an order.
func answerTo(t *testing.T, orderID, eventType string, change ...func(*events.Event)) rabbit.Delivery {
	t.Helper()
	now := time.Now()
	e := events.Event{
		EventID: events.NewID(now), EventType: eventType, OccurredAt: events.At(now), OrderID: orderID, Sequence: 1,
	}
	if eventType == events.InventoryRejected {
		e.Reason = "out of stock"
	}
	for _, c := range change {
		c(&e)
	}
	body, err := events.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	return rabbit.Delivery{MessageID: e.EventID, Type: e.EventType, Body: body}
}

// apply handles deliveries in one batch and fails on any verdict but nil.
func (f fixture) apply(t *testing.T, batch ...rabbit.Delivery) {
	t.Helper()
	for i, err := range f.applyAnswers(t.Context(), batch) {
		if err != nil {
			t.Errorf("delivery %d: %v", i, err)
		}
	}
}

func (f fixture) status(t *testing.T, orderID string) string {
	t.Helper()
	o := f.get(t, "/orders/"+orderID).order(t)
	return strings.TrimSpace(o.Status + " " + o.Reason)
}

// The state table of design.md: every state of an order against every answer.
func TestAnswerByState(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, tt := range []struct {
		status, answer string
		want, effect   string
	}{
		{"created", events.InventoryReserved, "reserved", effectApplied},
		{"created", events.InventoryRejected, "rejected out of stock", effectApplied},
		{"reserved", events.InventoryReserved, "reserved", effectRepeated},
		{"reserved", events.InventoryRejected, "reserved", effectContradiction},
		{"rejected", events.InventoryReserved, "rejected", effectContradiction},
		{"rejected", events.InventoryRejected, "rejected", effectRepeated},
		{"cancelled", events.InventoryReserved, "cancelled", effectLate},
		{"cancelled", events.InventoryRejected, "cancelled", effectLate},
	} {
		o := f.placeOrder(t)
		if _, err := f.db.Exec(t.Context(), `update orders set status = $2 where order_id = $1`, o.OrderID, tt.status); err != nil {
			t.Fatal(err)
		}
		d := answerTo(t, o.OrderID, tt.answer)
		f.apply(t, d)
		f.apply(t, d) // and a copy of it
		if got := f.status(t, o.OrderID); got != tt.want {
			t.Errorf("%s, %s: order is %s, want %s", tt.status, tt.answer, got, tt.want)
		}
		var got []string
		rows, err := f.db.Query(t.Context(), `select event_type || ' ' || effect || ' ' || order_status from order_answers where order_id = $1`, o.OrderID)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			got = append(got, line)
		}
		if diff := cmp.Diff([]string{fmt.Sprintf("%s %s %s", tt.answer, tt.effect, tt.status)}, got); diff != "" {
			t.Errorf("%s, %s: recorded (-want +got):\n%s", tt.status, tt.answer, diff)
		}
	}
	metrics := string(f.get(t, "/metrics").body)
	for _, want := range []string{
		`baton_inbox_duplicates_total 8`,
		`baton_order_answers_total{effect="applied",type="inventory.reserved"} 1`,
		`baton_order_answers_total{effect="contradiction",type="inventory.rejected"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no line %s in the metrics", want)
		}
	}
}

// A batch is applied in the order in which it came, copies in it once.
func TestAnswersInOneBatch(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a, b := f.placeOrder(t), f.placeOrder(t)
	reserved := answerTo(t, a.OrderID, events.InventoryReserved)
	f.apply(t,
		answerTo(t, b.OrderID, events.InventoryRejected),
		reserved, reserved,
		answerTo(t, a.OrderID, events.InventoryRejected),
		answerTo(t, b.OrderID, events.InventoryRejected),
	)
	if got, want := f.status(t, a.OrderID)+", "+f.status(t, b.OrderID), "reserved, rejected out of stock"; got != want {
		t.Errorf("orders are %s, want %s", got, want)
	}
	if n := f.count(t, `select count(*) from order_answers`); n != 4 {
		t.Errorf("%d answers recorded, want 4", n)
	}
	if n := f.count(t, `select count(*) from order_answers where effect = 'contradiction'`); n != 1 {
		t.Errorf("%d contradictions, want 1", n)
	}
}

// What no further attempt can mend is permanent, and harms nothing else in its
// batch: it leaves no trace, so that it is handled when it is put back.
func TestPermanentAnswers(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := f.placeOrder(t)
	good := answerTo(t, o.OrderID, events.InventoryReserved)
	changed := func(change func(*rabbit.Delivery)) rabbit.Delivery {
		d := answerTo(t, o.OrderID, events.InventoryReserved)
		change(&d)
		return d
	}
	cancelled := answerTo(t, o.OrderID, events.OrderCancelled)
	bad := []struct {
		name string
		d    rabbit.Delivery
		says string
	}{
		{"unknown order", answerTo(t, "ORD-20260715-999999", events.InventoryReserved), "there is no order ORD-20260715-999999"},
		{"too old", answerTo(t, o.OrderID, events.InventoryReserved, func(e *events.Event) { e.OccurredAt = events.At(time.Now().Add(-8 * 24 * time.Hour)) }), "too old to deduplicate"},
		{"not JSON", changed(func(d *rabbit.Delivery) { d.Body = []byte("{") }), "decode event"},
		{"another message id", changed(func(d *rabbit.Delivery) { d.MessageID = "x" }), "message_id"},
		{"no message id", changed(func(d *rabbit.Delivery) { d.MessageID = "" }), "message_id"},
		{"another type", changed(func(d *rabbit.Delivery) { d.Type = events.InventoryRejected }), "type is"},
		{"not an answer", cancelled, "cannot be a order.cancelled"},
	}
	batch := []rabbit.Delivery{good}
	for _, b := range bad {
		batch = append(batch, b.d)
	}
	verdicts := f.applyAnswers(t.Context(), batch)
	if verdicts[0] != nil {
		t.Errorf("the good one: %v, want nil", verdicts[0])
	}
	for i, b := range bad {
		if err := verdicts[i+1]; !rabbit.IsPermanent(err) || !strings.Contains(err.Error(), b.says) {
			t.Errorf("%s: %v, want permanent %q", b.name, err, b.says)
		}
	}
	if got := f.status(t, o.OrderID); got != "reserved" {
		t.Errorf("order is %s, want reserved", got)
	}
	if n := f.count(t, `select count(*) from inbox_messages`); n != 1 {
		t.Errorf("%d ids in the inbox, want that of the good one", n)
	}
}

// B46: a copy that comes after its id was forgotten changes nothing.
func TestAnswerAfterItsIDWasPruned(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := f.placeOrder(t)
	d := answerTo(t, o.OrderID, events.InventoryReserved)
	f.apply(t, d)
	if _, err := f.db.Exec(t.Context(), `delete from inbox_messages`); err != nil {
		t.Fatal(err)
	}
	f.apply(t, d)
	if n := f.count(t, `select count(*) from order_answers`); n != 1 {
		t.Errorf("%d answers recorded, want 1", n)
	}
}

// While the database is away nothing is anybody's fault.
func TestAnswersInAnOutage(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := f.placeOrder(t)
	batch := []rabbit.Delivery{answerTo(t, o.OrderID, events.InventoryReserved), answerTo(t, o.OrderID, events.InventoryReserved)}
	if _, err := f.db.Exec(t.Context(), `alter table order_answers rename to away`); err != nil {
		t.Fatal(err)
	}
	for _, err := range f.applyAnswers(t.Context(), batch) {
		if !rabbit.IsUnavailable(err) {
			t.Errorf("verdict %v, want unavailable", err)
		}
	}
	if _, err := f.db.Exec(t.Context(), `alter table away rename to order_answers`); err != nil {
		t.Fatal(err)
	}
	f.apply(t, batch...)
	if got := f.status(t, o.OrderID); got != "reserved" {
		t.Errorf("order is %s, want reserved", got)
	}
}

// B35: somebody holds on to one order. Its answer waits, and no other does.
func TestAnswerToLockedOrder(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var batch []rabbit.Delivery
	var ids []string
	for range 5 {
		o := f.placeOrder(t)
		ids = append(ids, o.OrderID)
		batch = append(batch, answerTo(t, o.OrderID, events.InventoryReserved))
	}
	tx, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from orders where order_id = $1 for update`, ids[2]); err != nil {
		t.Fatal(err)
	}
	for i, err := range f.applyAnswers(t.Context(), batch) {
		if locked := i == 2; rabbit.IsUnavailable(err) != locked || !locked && err != nil {
			t.Errorf("delivery %d: %v, want unavailable for number 2 and nil for the rest", i, err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.apply(t, batch[2])
	for _, id := range ids {
		if got := f.status(t, id); got != "reserved" {
			t.Errorf("order is %s, want reserved", got)
		}
	}
}

// Cancelling and reserving at the same moment ends in one of two ways, and never
// in a lost event: cancelled after reserved, or reserved too late.
func TestCancelAndAnswerAtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for range 30 {
		o := f.placeOrder(t)
		d := answerTo(t, o.OrderID, events.InventoryReserved)
		var both sync.WaitGroup
		both.Go(func() { f.cancelOrder(t, o.OrderID) })
		both.Go(func() { f.apply(t, d) })
		both.Wait()
		if got := f.status(t, o.OrderID); got != "cancelled" {
			t.Errorf("order is %s, want cancelled", got)
		}
		if n := f.count(t, `select count(*) from outbox_messages where aggregate_id = $1 and event_type = 'order.cancelled'`, o.OrderID); n != 1 {
			t.Errorf("%d cancellations told, want 1", n)
		}
		if n := f.count(t, `select count(*) from order_answers where order_id = $1 and effect in ('applied', 'late')`, o.OrderID); n != 1 {
			t.Errorf("%d answers recorded, want 1", n)
		}
	}
}

// Two replicas that get the same answers at the same moment, in opposite order.
func TestAnswersAtTwoReplicas(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const n = 40
	var forth, back []rabbit.Delivery
	var ids []string
	for range n {
		o := f.placeOrder(t)
		ids = append(ids, o.OrderID)
		d := answerTo(t, o.OrderID, events.InventoryReserved)
		forth, back = append(forth, d), append([]rabbit.Delivery{d}, back...)
	}
	var both sync.WaitGroup
	both.Go(func() { f.apply(t, forth...) })
	both.Go(func() { f.apply(t, back...) })
	both.Wait()
	if got := f.count(t, `select count(*) from orders where status = 'reserved' and order_id = any ($1)`, ids); got != n {
		t.Errorf("%d orders reserved, want %d", got, n)
	}
	if got := f.count(t, `select count(*) from order_answers where effect = 'applied'`); got != n {
		t.Errorf("%d answers applied, want %d", got, n)
	}
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := f.placeOrder(t)
	answer := answerTo(t, o.OrderID, events.InventoryReserved)
	f.apply(t, answer)
	f.cancelOrder(t, o.OrderID)
	if _, err := f.db.Exec(t.Context(), `update outbox_messages set status = 'Published', published_at = now() where sequence = 1`); err != nil {
		t.Fatal(err)
	}
	if _, err := f.db.Exec(t.Context(), `update outbox_messages set status = 'Processing', locked_by = 'order:1', locked_until = now() + interval '40 seconds' where sequence = 2`); err != nil {
		t.Fatal(err)
	}
	var timeline struct {
		OrderID, EventID string
		Steps            []TimelineStep
	}
	if a := f.get(t, "/timeline/"+o.OrderID); json.Unmarshal(a.body, &timeline, json.MatchCaseInsensitiveNames(true)) != nil {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	var got []string
	for i, step := range timeline.Steps {
		got = append(got, step.Step)
		if i > 0 && step.At.Before(timeline.Steps[i-1].At.Time) {
			t.Errorf("%s is before what stands before it", step.Step)
		}
	}
	want := []string{"order.accepted", "order.committed", "consumer.committed", "order.committed", "relay.settled", "relay.claimed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if timeline.EventID != o.EventID || timeline.Steps[0].EventID != o.EventID || timeline.Steps[2].EventID != answer.MessageID {
		t.Errorf("event ids %+v", timeline)
	}
	if a := f.get(t, "/timeline/ORD-20260715-000001"); a.status != 404 {
		t.Errorf("unknown order: %d, want 404", a.status)
	}
}
