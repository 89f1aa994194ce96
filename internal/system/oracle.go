package system

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// Settled waits until every accepted order is reserved or rejected and nothing
// is on its way any more: no open row in an outbox, no event that its inbox does
// not know, no message in a queue or in the hands of a consumer. except are ids
// of events that cannot get through.
func (s *System) Settled(except ...string) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, "everything settled", func() error { return s.unsettled(s.t.Context(), except) })
	// The queues come last: what they report is a second old.
	testenv.Eventually(s.t, patience, "empty queues", func() error { return s.waiting(s.t.Context()) })
}

const openOrdersSQL = `
select (select count(*) from orders where status = 'created' and event_id <> all ($1::text[])),
       (select count(*) from outbox_messages where published_at is null and failed_at is null)`

const openAnswersSQL = `
select count(*) from outbox_messages where published_at is null and failed_at is null`

const sentSQL = `
select event_id from outbox_messages where published_at is not null and event_id <> all ($1::text[])`

const unheardSQL = `
select count(*) from unnest($1::text[]) as sent (event_id)
where not exists (select 1 from inbox_messages i where i.event_id = sent.event_id)`

func (s *System) unsettled(ctx context.Context, except []string) error {
	if except == nil {
		except = []string{}
	}
	var orders, events, answers int
	if err := s.OrderDB.QueryRow(ctx, openOrdersSQL, except).Scan(&orders, &events); err != nil {
		return err
	}
	if err := s.InventoryDB.QueryRow(ctx, openAnswersSQL).Scan(&answers); err != nil {
		return err
	}
	if orders+events+answers > 0 {
		return fmt.Errorf("%d orders without an answer, %d events and %d answers not sent", orders, events, answers)
	}
	for _, way := range []struct {
		what     string
		from, to *pgxpool.Pool
	}{{"events", s.OrderDB, s.InventoryDB}, {"answers", s.InventoryDB, s.OrderDB}} {
		rows, err := way.from.Query(ctx, sentSQL, except)
		if err != nil {
			return err
		}
		sent, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		var unheard int
		if err := way.to.QueryRow(ctx, unheardSQL, sent).Scan(&unheard); err != nil {
			return err
		}
		if unheard > 0 {
			return fmt.Errorf("%d %s sent and not handled", unheard, way.what)
		}
	}
	return nil
}

// waiting returns an error if a queue is not empty; the final ones may hold what
// they like.
func (s *System) waiting(ctx context.Context) error {
	queues, err := s.Broker.Queues(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{InventoryQueue, InventoryQueue + ".retry", OrderQueue, OrderQueue + ".retry"} {
		ready, err := testenv.QueueDepth(s.Vhost, name)
		if err != nil {
			return err
		}
		if n := max(ready, queues[name].Messages); n > 0 {
			return fmt.Errorf("%d messages in %s", n, name)
		}
	}
	return nil
}

// Exact fails the test unless every order that a client was told is accepted was
// stored once, sent, handled once and answered, and nothing else was. Call it
// when everything is [System.Settled].
//
// except are ids of messages that the test has made impossible to deliver: each
// must have ended as a Failed row or in a final dead-letter queue, and nothing
// else may have ended there. A dead letter has had no effect. A Failed row may
// have arrived all the same, since nobody lived to hear of its confirm; then its
// effect is there once, as of any other.
func (s *System) Exact(except ...string) {
	s.t.Helper()
	problems, err := s.Problems(s.t.Context(), except...)
	if err != nil {
		s.t.Fatalf("look for what is not exact: %v", err)
	}
	const most = 20
	for _, problem := range problems[:min(len(problems), most)] {
		s.t.Error(problem)
	}
	if more := len(problems) - most; more > 0 {
		s.t.Errorf("and %d more", more)
	}
}

// Problems is what [System.Exact] finds, in words.
func (s *System) Problems(ctx context.Context, except ...string) ([]string, error) {
	b, err := readBooks(ctx, s.OrderDB, s.InventoryDB)
	if err != nil {
		return nil, err
	}
	for _, queue := range []string{InventoryQueue, OrderQueue} {
		for _, d := range s.Dead(queue) {
			b.dead[d.MessageId] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return b.check(s.accepted, s.cancelled, except), nil
}

// books is everything that the two databases and the final queues say.
type books struct {
	orders   map[string]bookedOrder  // by order id
	keys     int                     // idempotency keys
	sent     []outboxRow             // of the order service
	heard    map[string]int          // inbox of inventory, by event id
	decided  map[string]decidedOrder // what inventory made of orders, by order id
	held     map[string][]heldLine   // reservations, by order id
	stock    []stockRow
	answers  []outboxRow              // of inventory
	applied  map[string]int           // inbox of the order service, by event id
	effects  map[string][]orderAnswer // what answers did, by order id
	suspects []id                     // marks in either inbox
	dead     map[string]bool          // message ids in the final queues

	except   []string
	problems []string
}

type (
	bookedOrder struct {
		OrderID, EventID, Customer, Status string
		Items                              []events.Item
	}
	outboxRow struct {
		EventID, OrderID, Type, Status string
		Sequence                       int64
	}
	decidedOrder struct{ OrderID, State string }
	heldLine     struct {
		OrderID, SKU, Status string
		Quantity             int64
	}
	stockRow struct {
		SKU              string
		OnHand, Reserved int64
	}
	orderAnswer struct{ EventID, OrderID, Type, Effect string }
	id          struct{ ID string }
)

const outboxSQL = `select event_id, aggregate_id, event_type, status, sequence from outbox_messages order by aggregate_id, sequence`

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func readBooks(ctx context.Context, orderDB, inventoryDB querier) (*books, error) {
	r := &reader{ctx: ctx}
	b := &books{
		sent:    read[outboxRow](r, orderDB, outboxSQL),
		answers: read[outboxRow](r, inventoryDB, outboxSQL),
		stock:   read[stockRow](r, inventoryDB, `select sku, on_hand, reserved from stock`),
		orders:  make(map[string]bookedOrder),
		decided: make(map[string]decidedOrder),
		held:    make(map[string][]heldLine),
		effects: make(map[string][]orderAnswer),
		heard:   make(map[string]int),
		applied: make(map[string]int),
		dead:    make(map[string]bool),
	}
	for _, o := range read[bookedOrder](r, orderDB, `select order_id, event_id, customer_id, status, items from orders`) {
		b.orders[o.OrderID] = o
	}
	for _, d := range read[decidedOrder](r, inventoryDB, `select order_id, state from inventory_orders`) {
		b.decided[d.OrderID] = d
	}
	for _, h := range read[heldLine](r, inventoryDB, `select order_id, sku, status, quantity from inventory_reservations`) {
		b.held[h.OrderID] = append(b.held[h.OrderID], h)
	}
	for _, a := range read[orderAnswer](r, orderDB, `select event_id, order_id, event_type, effect from order_answers`) {
		b.effects[a.OrderID] = append(b.effects[a.OrderID], a)
	}
	b.keys = len(read[id](r, orderDB, `select order_id from idempotency_keys`))
	for _, side := range []struct {
		db    querier
		inbox map[string]int
	}{{inventoryDB, b.heard}, {orderDB, b.applied}} {
		for _, m := range read[id](r, side.db, `select event_id from inbox_messages`) {
			side.inbox[m.ID]++
		}
		b.suspects = append(b.suspects, read[id](r, side.db, `select event_id from inbox_suspects`)...)
	}
	return b, r.err
}

// reader reads tables one after the other; the first error stands.
type reader struct {
	ctx context.Context
	err error
}

func read[T any](r *reader, db querier, sql string) []T {
	if r.err != nil {
		return nil
	}
	rows, err := db.Query(r.ctx, sql)
	var all []T
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	}
	r.err = err
	return all
}

func (b *books) problem(format string, args ...any) {
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

// check returns what is not exact.
func (b *books) check(accepted []Order, cancelled map[string]bool, except []string) []string {
	b.except = except
	b.checkAccepted(accepted, cancelled)
	b.checkSent("order", b.sent, b.heard)
	b.checkSent("inventory", b.answers, b.applied)
	b.checkReserved()
	b.checkStock()
	b.checkAnswers()
	b.checkExceptions()
	for _, left := range b.suspects {
		b.problem("a mark of the suspect %s is left", left.ID)
	}
	return b.problems
}

// excused reports whether an event need not get through.
func (b *books) excused(eventID string) bool { return slices.Contains(b.except, eventID) }

// stuck reports whether it has not.
func (b *books) stuck(eventID string) bool { return b.excused(eventID) && b.heard[eventID] == 0 }

// checkAccepted holds the orders against what clients were told: the same
// orders, no more and no fewer, one for each request.
func (b *books) checkAccepted(accepted []Order, cancelled map[string]bool) {
	customers := make(map[string]string)
	for _, o := range b.orders {
		if other, twice := customers[o.Customer]; twice {
			b.problem("the request of %s has two orders, %s and %s", o.Customer, other, o.OrderID)
		}
		customers[o.Customer] = o.OrderID
	}
	for _, a := range accepted {
		o, ok := b.orders[a.OrderID]
		switch {
		case !ok:
			b.problem("order %s was accepted and is not there", a.OrderID)
			continue
		case o.EventID != a.EventID || o.Customer != a.Customer || !slices.Equal(o.Items, a.Items):
			b.problem("order %s is stored as %v, accepted as %v", a.OrderID, o, a)
		}
		switch {
		case b.stuck(o.EventID) && o.Status != "created":
			b.problem("order %s is %s although its event could not get through", o.OrderID, o.Status)
		case b.stuck(o.EventID):
		case cancelled[a.OrderID] != (o.Status == "cancelled"):
			b.problem("order %s is %s; the client was told that it is cancelled: %t", o.OrderID, o.Status, cancelled[a.OrderID])
		case o.Status == "created":
			b.problem("order %s has had no answer", o.OrderID)
		}
	}
	if len(b.orders) != len(accepted) {
		b.problem("%d orders are stored, %d were accepted", len(b.orders), len(accepted))
	}
	if b.keys != len(accepted) {
		b.problem("%d idempotency keys are stored, %d orders were accepted", b.keys, len(accepted))
	}
}

// checkSent holds an outbox against the other service's inbox.
func (b *books) checkSent(whose string, sent []outboxRow, inbox map[string]int) {
	for _, r := range sent {
		switch {
		case r.Status == "Failed" && b.excused(r.EventID):
		case r.Status != "Published":
			b.problem("event %s (%s) of the %s service is %s", r.EventID, r.Type, whose, r.Status)
		case b.excused(r.EventID) != (inbox[r.EventID] == 0):
			b.problem("event %s (%s) of the %s service was sent and is %d times in the inbox", r.EventID, r.Type, whose, inbox[r.EventID])
		}
	}
	known := make(map[string]bool, len(sent))
	for _, r := range sent {
		known[r.EventID] = true
	}
	for id, n := range inbox {
		if !known[id] || n > 1 {
			b.problem("event %s is %d times in the inbox; sent by the %s service: %t", id, n, whose, known[id])
		}
	}
}

// checkReserved holds what inventory has done against what was ordered: for each
// order everything or nothing, once, and the same as the order says.
func (b *books) checkReserved() {
	eventsOf := make(map[string][]string) // types, in sequence
	for _, r := range b.sent {
		eventsOf[r.OrderID] = append(eventsOf[r.OrderID], r.Type)
	}
	for id, o := range b.orders {
		want := []string{events.OrderCreated}
		if o.Status == "cancelled" {
			want = append(want, events.OrderCancelled)
		}
		if !slices.Equal(eventsOf[id], want) {
			b.problem("order %s is %s and has the events %v", id, o.Status, eventsOf[id])
		}
		d, heard := b.decided[id]
		if b.stuck(o.EventID) {
			if heard || len(b.held[id]) > 0 {
				b.problem("order %s is %s at inventory although its event could not get through", id, d.State)
			}
			continue
		}
		wantStates := map[string][]string{
			"reserved":  {"reserved"},
			"rejected":  {"rejected"},
			"cancelled": {"released", "cancelled_first", "rejected"},
		}[o.Status]
		if !slices.Contains(wantStates, d.State) {
			b.problem("order %s is %s and %q at inventory", id, o.Status, d.State)
		}
		b.checkLines(o, d.State)
	}
	for id := range b.decided {
		if _, ok := b.orders[id]; !ok {
			b.problem("inventory knows an order %s that does not exist", id)
		}
	}
	for id := range b.held {
		if _, ok := b.orders[id]; !ok {
			b.problem("stock is held for an order %s that does not exist", id)
		}
	}
}

func (b *books) checkLines(o bookedOrder, state string) {
	want := make(map[string]int64) // by sku
	if state == "reserved" || state == "released" {
		for _, it := range o.Items {
			want[it.SKU] += it.Quantity
		}
	}
	got := make(map[string]int64)
	for _, h := range b.held[o.OrderID] {
		got[h.SKU] += h.Quantity
		if h.Status != state {
			b.problem("order %s is %s and its line of %s is %s", o.OrderID, state, h.SKU, h.Status)
		}
	}
	if !maps.Equal(got, want) {
		b.problem("order %s is %s and holds %v, want %v", o.OrderID, state, got, want)
	}
}

func (b *books) checkStock() {
	reserved := make(map[string]int64)
	for _, lines := range b.held {
		for _, h := range lines {
			if h.Status == "reserved" {
				reserved[h.SKU] += h.Quantity
			}
		}
	}
	for _, row := range b.stock {
		if row.Reserved != reserved[row.SKU] || row.Reserved > row.OnHand {
			b.problem("%d of %d of %s are reserved, orders hold %d", row.Reserved, row.OnHand, row.SKU, reserved[row.SKU])
		}
	}
}

// checkAnswers holds inventory's answers against what the order service has
// recorded: one for each order that it decided, applied once and never against
// an earlier one.
func (b *books) checkAnswers() {
	answersOf := make(map[string][]outboxRow)
	for _, a := range b.answers {
		answersOf[a.OrderID] = append(answersOf[a.OrderID], a)
	}
	for id, o := range b.orders {
		if b.stuck(o.EventID) {
			continue
		}
		state := b.decided[id].State
		var want []string
		switch state {
		case "reserved", "released":
			want = []string{events.InventoryReserved}
		case "rejected":
			want = []string{events.InventoryRejected}
		}
		var got []string
		for _, a := range answersOf[id] {
			got = append(got, a.Type)
		}
		if !slices.Equal(got, want) {
			b.problem("order %s is %q at inventory, which has answered %v", id, state, got)
		}
		if effects := b.effects[id]; len(effects) != len(want) {
			b.problem("%d answers to order %s are recorded, want %d", len(effects), id, len(want))
		}
		for _, e := range b.effects[id] {
			if e.Effect != "applied" && !(e.Effect == "late" && o.Status == "cancelled") {
				b.problem("answer %s (%s) to order %s, which is %s, was %s", e.EventID, e.Type, id, o.Status, e.Effect)
			}
		}
	}
}

// checkExceptions holds what could not get through against where it may end.
func (b *books) checkExceptions() {
	failed := make(map[string]bool)
	for _, r := range slices.Concat(b.sent, b.answers) {
		failed[r.EventID] = r.Status == "Failed"
	}
	for _, id := range b.except {
		if failed[id] == b.dead[id] {
			b.problem("message %s, which could not get through, is Failed: %t, dead-lettered: %t; want one of both", id, failed[id], b.dead[id])
		}
	}
	for id := range b.dead {
		if !b.excused(id) {
			b.problem("message %s is dead-lettered", id)
		}
	}
}
