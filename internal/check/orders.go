package check

import (
	"context"
	"maps"
	"slices"
	"time"

	"example.com/baton/shared/events"
)

// Rows of the order service.
type (
	orderRow struct {
		OrderID, EventID, Status string
		Items                    []events.Item
		LastSequence             int64
		CreatedAt, UpdatedAt     time.Time
	}
	effectRow struct{ OrderID, EventID, Type, Effect string } // what an answer did
	eventRow  sentRow                                         // by order, of either outbox
)

// Rows of inventory.
type (
	decidedRow struct {
		OrderID, State, EventID string
		CreatedAt               time.Time
	}
	lineRow struct {
		OrderID, SKU, Status, EventID string
		Quantity                      int64
	}
)

func (r orderRow) key() string   { return r.OrderID }
func (r effectRow) key() string  { return r.OrderID }
func (r eventRow) key() string   { return r.OrderID }
func (r decidedRow) key() string { return r.OrderID }
func (r lineRow) key() string    { return r.OrderID }

const ordersSQL = `
select order_id, event_id, status, items, last_sequence, created_at, updated_at
from orders order by order_id collate "C"`

const effectsSQL = `
select order_id, event_id, event_type, effect from order_answers order by order_id collate "C", received_at`

const eventsSQL = `
select event_id, aggregate_id, event_type, status, sequence, attempt_count, published_at
from outbox_messages order by aggregate_id collate "C", sequence`

const decidedSQL = `
select order_id, state, event_id, created_at from inventory_orders order by order_id collate "C"`

const linesSQL = `
select order_id, sku, status, event_id, quantity from inventory_reservations order by order_id collate "C", sku`

// story is all that is stored of one order.
type story struct {
	id      string
	order   *orderRow
	events  []eventRow // by sequence
	effects []effectRow

	decided *decidedRow // nil: inventory has not heard of it
	lines   []lineRow
	answers []eventRow

	// kept, decidedKept: nothing of it can have been pruned yet, at orders and at
	// inventory.
	kept, decidedKept bool
}

// orders holds each order against what inventory made of it.
func (l *look) orders(ctx context.Context, o, i *snapshot) {
	orders := open[orderRow](ctx, o, "orders_by_id", ordersSQL)
	sent := open[eventRow](ctx, o, "events_by_order", eventsSQL)
	effects := open[effectRow](ctx, o, "effects_by_order", effectsSQL)
	decided := open[decidedRow](ctx, i, "decided_by_order", decidedSQL)
	lines := open[lineRow](ctx, i, "lines_by_order", linesSQL)
	answers := open[eventRow](ctx, i, "answers_by_order", eventsSQL)
	merge(func(id string) {
		s := story{
			id:     id,
			events: sent.take(id), effects: effects.take(id),
			lines: lines.take(id), answers: answers.take(id),
		}
		if rows := orders.take(id); len(rows) > 0 {
			s.order = &rows[0]
			s.kept = o.now.Sub(s.order.CreatedAt) < l.opts.OutboxKeep
		}
		if rows := decided.take(id); len(rows) > 0 {
			s.decided = &rows[0]
			s.decidedKept = i.now.Sub(s.decided.CreatedAt) < l.opts.OutboxKeep
		}
		l.order(s, o.now)
	}, orders, sent, effects, decided, lines, answers)
}

func (l *look) order(s story, now time.Time) {
	if s.order == nil {
		l.noOrder(s)
		return
	}
	l.Orders++
	l.sequence(s, now)
	l.fate(s)
	l.lines(s)
	l.answersTo(s)
	l.status(s)
}

// noOrder is about what exists of an order that was not there when orders were
// read. Inventory was read later and may have heard of a newer one.
func (l *look) noOrder(s story) {
	for _, e := range s.events {
		l.violation(eventWithoutOrder, e.EventID, s.id, "%s %s is about an order %s that does not exist", e.Type, e.EventID, s.id)
	}
	switch {
	case s.decided != nil:
		l.surprising[s.id] = surprise{s.decided.State, s.decided.EventID}
	case len(s.lines) > 0:
		l.surprising[s.id] = surprise{"not known", s.lines[0].EventID}
	case len(s.answers) > 0:
		l.surprising[s.id] = surprise{"answered", s.answers[0].EventID}
	}
}

func (s story) created() *eventRow {
	for i, e := range s.events {
		if e.Type == events.OrderCreated && e.EventID == s.order.EventID {
			return &s.events[i]
		}
	}
	return nil
}

func (s story) cancelled() *eventRow {
	for i, e := range s.events {
		if e.Type == events.OrderCancelled {
			return &s.events[i]
		}
	}
	return nil
}

// sequence holds the events of an order against the order. Published ones are
// removed some day, the earlier ones not always first.
func (l *look) sequence(s story, now time.Time) {
	lastKept := now.Sub(s.order.UpdatedAt) < l.opts.OutboxKeep
	cancelled := s.cancelled()
	switch {
	case s.created() == nil && s.kept:
		l.violation(orderWithoutEvent, s.order.EventID, s.id, "order %s has no order.created %s", s.id, s.order.EventID)
		return
	case s.order.Status == "cancelled" && cancelled == nil && lastKept:
		l.violation(orderWithoutEvent, "", s.id, "order %s is cancelled and has no order.cancelled", s.id)
		return
	case s.order.Status != "cancelled" && cancelled != nil:
		l.violation(statusDisagrees, cancelled.EventID, s.id, "order %s is %s and has the order.cancelled %s", s.id, s.order.Status, cancelled.EventID)
	}
	var got []int64
	complete := int64(len(s.events)) == s.order.LastSequence
	for n, e := range s.events {
		got = append(got, e.Sequence)
		complete = complete && e.Sequence == int64(n+1)
	}
	if !s.kept { // then it is enough that there is nothing it should not have
		complete = !slices.ContainsFunc(got, func(n int64) bool { return n > s.order.LastSequence })
	}
	if !complete {
		l.violation(sequenceGap, s.order.EventID, s.id, "order %s has events up to %d and the outbox has %v", s.id, s.order.LastSequence, got)
	}
}

// fate puts an order into one of the counts, or names it as unaccounted for.
func (l *look) fate(s story) {
	created := s.created()
	switch {
	case s.decided != nil:
		switch s.decided.State {
		case "reserved":
			l.Reserved++
		case "rejected":
			l.Rejected++
		case "released":
			l.Released++
		case "cancelled_first":
			l.CancelledFirst++
		}
	case l.dead[forth.queue].ids[s.order.EventID]:
		l.Dead++
	case created == nil && !s.kept:
		// Its row is pruned, so it was sent. It may have waited in the queue since.
		l.InFlight++
		l.unheard[forth.queue][s.order.EventID] = unheard{orderID: s.id, age: l.opts.OutboxKeep, undecided: true}
	case created == nil:
		l.unaccounted(s.order.EventID, s.id, "nothing became of order %s", s.id)
	case created.Status == "Failed":
		l.Failed++
	case created.Status != "Published":
		l.InFlight++
	default:
		u, unheard := l.unheard[forth.queue][created.EventID]
		if !unheard {
			l.violation(inboxWithoutWork, created.EventID, s.id, "inventory has heard %s and has done nothing for order %s", created.EventID, s.id)
			l.unaccounted(created.EventID, s.id, "nothing became of order %s", s.id)
			return
		}
		l.InFlight++
		u.undecided = true
		l.unheard[forth.queue][created.EventID] = u
	}
}

func (l *look) unaccounted(eventID, orderID, format string, args ...any) {
	l.violation(accounting, eventID, orderID, format, args...)
}

// lines holds what is reserved against what was ordered: all of it or nothing.
func (l *look) lines(s story) {
	state := "unknown to inventory"
	if s.decided != nil {
		state = s.decided.State
	}
	want := make(map[string]int64) // by sku
	if state == "reserved" || state == "released" {
		for _, item := range s.order.Items {
			want[item.SKU] += item.Quantity
		}
	}
	got := make(map[string]int64)
	for _, line := range s.lines {
		if _, twice := got[line.SKU]; twice {
			l.violation(lineTwice, line.EventID, s.id, "order %s has %s twice", s.id, line.SKU)
		}
		got[line.SKU] += line.Quantity
		if line.Status != state {
			l.violation(lineTwice, line.EventID, s.id, "order %s is %s and its line of %s is %s", s.id, state, line.SKU, line.Status)
		}
	}
	if !maps.Equal(got, want) {
		l.violation(lineTwice, s.order.EventID, s.id, "order %s is %s and has the lines %v, want %v", s.id, state, got, want)
	}
}

// answersTo holds inventory's answers against what it has decided, and what
// they did against the order. Effects are never pruned, answers are.
func (l *look) answersTo(s story) {
	var want []string
	if s.decided != nil {
		switch s.decided.State {
		case "reserved", "released":
			want = []string{events.InventoryReserved}
		case "rejected":
			want = []string{events.InventoryRejected}
		}
	}
	var got []string
	for _, a := range s.answers {
		got = append(got, a.Type)
	}
	if !slices.Equal(got, want) && (len(got) > 0 || s.decided == nil || s.decidedKept) {
		l.violation(answers, s.order.EventID, s.id, "order %s is %s and inventory has answered %v", s.id, s.state(), got)
	}
	applied := 0
	for _, e := range s.effects {
		switch {
		case e.Effect == "applied":
			applied++
		case e.Effect != "late" || s.order.Status != "cancelled":
			l.violation(answers, e.EventID, s.id, "the answer %s (%s) to order %s, which is %s, was %s", e.EventID, e.Type, s.id, s.order.Status, e.Effect)
		}
	}
	if len(s.effects) > 1 {
		l.violation(answers, s.effects[1].EventID, s.id, "%d answers to order %s are recorded", len(s.effects), s.id)
	}
	if (s.order.Status == "reserved" || s.order.Status == "rejected") && applied == 0 {
		l.violation(answers, s.order.EventID, s.id, "order %s is %s and no answer was applied to it", s.id, s.order.Status)
	}
}

func (s story) state() string {
	if s.decided == nil {
		return "unknown to inventory"
	}
	return s.decided.State + " at inventory"
}

// status holds the order's status against inventory, which was read later: it
// may know more, and must not know less.
func (l *look) status(s story) {
	state := ""
	if s.decided != nil {
		state = s.decided.State
	}
	disagrees := func(why string) {
		l.violation(statusDisagrees, s.order.EventID, s.id, "order %s is %s and %s%s", s.id, s.order.Status, s.state(), why)
	}
	cancelledSince := state == "released" || state == "cancelled_first"
	switch s.order.Status {
	case "created":
		switch {
		case state == "":
		case cancelledSince:
			l.surprising[s.id] = surprise{state, s.decided.EventID}
		case len(s.answers) > 0 && l.arrived(sentRow(s.answers[0]), back):
			disagrees(", whose answer has arrived")
		case len(s.answers) == 0 && !s.decidedKept:
			l.unanswered = append(l.unanswered, s.id) // its answer is pruned, so it was sent
		}
	case "reserved":
		switch state {
		case "reserved":
		case "released":
			l.surprising[s.id] = surprise{state, s.decided.EventID}
		default:
			disagrees("")
		}
	case "rejected":
		if state != "rejected" {
			disagrees("")
		}
	case "cancelled":
		if cancelled := s.cancelled(); (state == "" || state == "reserved") && cancelled != nil && l.arrived(sentRow(*cancelled), forth) {
			l.violation(inboxWithoutWork, cancelled.EventID, s.id, "inventory has heard %s and has not cancelled order %s", cancelled.EventID, s.id)
		}
	}
}

// finding is a row of what one database can find by itself.
type finding struct{ EventID, OrderID, Detail string }

const claimExpiredSQL = `
select event_id, aggregate_id, event_type || ' ' || event_id || ' is Processing by ' || locked_by ||
  ' and its lease ended at ' || locked_until
from outbox_messages
where published_at is null and failed_at is null and status = 'Processing' and locked_until < now() - $1::interval
order by locked_until`

const suspectsSQL = `
select event_id, '', event_id || ' has been a suspect of ' || consumer_name || ' since ' || marked_at
from inbox_suspects where marked_at < now() - $1::interval order by marked_at`

const stockSQL = `
select '', '', coalesce(s.reserved, 0) || ' of ' || coalesce(s.on_hand, 0) || ' of ' || sku || ' are reserved, orders hold ' || coalesce(r.held, 0)
from stock s full join (
  select sku, sum(quantity) filter (where status = 'reserved') as held from inventory_reservations group by sku
) r using (sku)
where coalesce(s.reserved, 0) <> coalesce(r.held, 0) or s.reserved > s.on_hand or s.reserved < 0
order by sku`

const effectWithoutInboxSQL = `
select event_id, order_id, 'the answer ' || event_id || ' was applied and is not in the inbox of the order service'
from order_answers a
where received_at > now() - $1::interval
  and not exists (select 1 from inbox_messages i where i.event_id = a.event_id)`

const inboxWithoutEffectSQL = `
select event_id, '', 'the answer ' || event_id || ' is in the inbox of the order service and was not applied'
from inbox_messages i
where not exists (select 1 from order_answers a where a.event_id = i.event_id)`

const decidedWithoutInboxSQL = `
select d.event_id, d.order_id, 'order ' || d.order_id || ' is ' || d.state || ' by ' || d.event_id || ', which is not in the inbox of inventory'
from inventory_orders d
where d.created_at > now() - $1::interval
  and not exists (select 1 from inbox_messages i where i.event_id = d.event_id)
union all
select d.cancel_event_id, d.order_id, 'order ' || d.order_id || ' was released by ' || d.cancel_event_id || ', which is not in the inbox of inventory'
from inventory_orders d
where d.updated_at > now() - $1::interval and d.cancel_event_id is not null
  and not exists (select 1 from inbox_messages i where i.event_id = d.cancel_event_id)`

// tables holds the rows of each database against each other.
func (l *look) tables(ctx context.Context, o, i *snapshot) {
	// What is handled alone may take a while.
	patience := max(l.opts.LeaseGrace, time.Minute)
	if l.opts.Quiet {
		patience = 0
	}
	for _, rule := range []struct {
		name string
		in   *snapshot
		sql  string
		args []any
	}{
		{claimExpired, o, claimExpiredSQL, []any{l.opts.LeaseGrace}},
		{claimExpired, i, claimExpiredSQL, []any{l.opts.LeaseGrace}},
		{suspectLeft, o, suspectsSQL, []any{patience}},
		{suspectLeft, i, suspectsSQL, []any{patience}},
		{stock, i, stockSQL, nil},
		{workWithoutInbox, o, effectWithoutInboxSQL, []any{l.opts.InboxKeep}},
		{workWithoutInbox, i, decidedWithoutInboxSQL, []any{l.opts.InboxKeep}},
		{inboxWithoutWork, o, inboxWithoutEffectSQL, nil},
	} {
		for _, f := range collect[finding](ctx, rule.in, rule.sql, rule.args...) {
			l.violation(rule.name, f.EventID, f.OrderID, "%s", f.Detail)
		}
	}
}
