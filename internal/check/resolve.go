package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// The second look asks anew about what the first has left open. What it asks is
// later than all that the first has read.

// lookUpAtOnce is how many ids one query asks for.
const lookUpAtOnce = 10_000

// lookUp adds to found which of the ids a query returns.
func lookUp(ctx context.Context, db Querier, sql string, ids []string, found map[string]bool) error {
	for some := range slices.Chunk(ids, lookUpAtOnce) {
		rows, err := db.Query(ctx, sql, some)
		if err != nil {
			return fmt.Errorf("look again: %w", err)
		}
		var id string
		if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { found[id] = true; return nil }); err != nil {
			return fmt.Errorf("look again: %w", err)
		}
	}
	return nil
}

const knownSQL = `select event_id from outbox_messages where event_id = any ($1)`

// resolveUnknown looks for events that were heard before their outbox was read.
func (l *look) resolveUnknown(ctx context.Context) error {
	for _, w := range []way{forth, back} {
		db, in := l.src.Orders, l.unknown[w.from]
		if w.from == back.from {
			db = l.src.Inventory
		}
		known := make(map[string]bool)
		if err := lookUp(ctx, db, knownSQL, in, known); err != nil {
			return err
		}
		for _, id := range in {
			if !known[id] {
				l.violation(eventUnknown, id, "", "%s is in the inbox of the %s service and not in the outbox of the %s service", id, w.to, w.from)
			}
		}
	}
	return nil
}

// resolveCopies looks for messages that the broker was given and that no outbox
// has.
func (l *look) resolveCopies(ctx context.Context) error {
	var ids []string
	for id := range l.opts.Copies {
		if !l.sentBefore[id] && !slices.Contains(l.opts.Except, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	known := make(map[string]bool)
	for _, db := range []Querier{l.src.Orders, l.src.Inventory} {
		if err := lookUp(ctx, db, knownSQL, ids, known); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if !known[id] {
			l.violation(eventUnknown, id, "", "%s was given to the broker and is in no outbox", id)
		}
	}
	return nil
}

const existingSQL = `select order_id from orders where order_id = any ($1)`
const cancelledSQL = `select order_id from orders where order_id = any ($1) and status = 'cancelled'`

// resolveSurprising looks whether an order has come to be, or was cancelled, as
// inventory knows already.
func (l *look) resolveSurprising(ctx context.Context) error {
	ids := slices.Sorted(maps.Keys(l.surprising))
	existing, cancelled := make(map[string]bool), make(map[string]bool)
	if err := lookUp(ctx, l.src.Orders, existingSQL, ids, existing); err != nil {
		return err
	}
	if err := lookUp(ctx, l.src.Orders, cancelledSQL, ids, cancelled); err != nil {
		return err
	}
	for _, id := range ids {
		s := l.surprising[id]
		byCancel := s.state == "released" || s.state == "cancelled_first"
		switch {
		case !existing[id]:
			l.violation(reservationWithoutOrder, s.eventID, id, "inventory has order %s as %s by %s, and it does not exist", id, s.state, s.eventID)
		case byCancel && !cancelled[id]:
			l.violation(statusDisagrees, s.eventID, id, "order %s is %s at inventory and was not cancelled", id, s.state)
		}
	}
	return nil
}

// resolveUnheard decides about messages that were sent and are in no inbox: on
// their way as long as the broker has so many, else lost.
func (l *look) resolveUnheard(ctx context.Context) error {
	for _, w := range []way{forth, back} {
		const first, slowest = 10 * time.Millisecond, 250 * time.Millisecond
		for wait := first; ; wait = min(2*wait, slowest) {
			decided, err := l.decideUnheard(ctx, w)
			if err != nil {
				return err
			}
			if decided {
				break
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		// What is left is on its way.
		l.Messages.Unheard += len(l.unheard[w.queue])
		for _, id := range slices.Sorted(maps.Keys(l.unheard[w.queue])) {
			l.isUnderWay(id, l.unheard[w.queue][id].orderID)
		}
	}
	return nil
}

// decideUnheard asks again about one direction. False: nobody can tell yet.
func (l *look) decideUnheard(ctx context.Context, w way) (decided bool, err error) {
	suspects := l.unheard[w.queue]
	if len(suspects) == 0 {
		return true, nil
	}
	// The broker first: what it has not any more is in the inbox or the final queue
	// by the time that these are looked at.
	elapsed := time.Since(l.began)
	depth, err := l.src.Broker.depth(ctx, w.queue)
	if err != nil {
		return false, err
	}
	certain := l.src.Broker == nil || elapsed >= l.src.Broker.certainAfter(suspects, depth)
	to := l.src.Inventory
	if w.to == back.to {
		to = l.src.Orders
	}
	heard := make(map[string]bool)
	if err := lookUp(ctx, to, heardSQL, slices.Sorted(maps.Keys(suspects)), heard); err != nil {
		return false, err
	}
	if err := l.hearMeanwhile(ctx, suspects, heard); err != nil {
		return false, err
	}
	onTheWay := func() bool {
		// Dead letters that could not be read may be any of them.
		return l.src.Broker == nil || len(suspects) <= depth.messages+l.dead[w.queue].unread
	}
	if onTheWay() || !certain {
		return onTheWay(), nil
	}
	// Last, and only once, since each reading is a delivery of all that is in there.
	if err := l.readDead(ctx, w); err != nil {
		return false, err
	}
	for id, u := range suspects {
		if !l.dead[w.queue].ids[id] {
			continue
		}
		delete(suspects, id)
		if u.undecided {
			l.InFlight--
			l.Dead++
		}
	}
	if onTheWay() {
		return true, nil
	}
	for _, id := range slices.Sorted(maps.Keys(suspects)) {
		u := suspects[id]
		l.violation(w.lost, id, u.orderID, "the %s %s of order %s was sent, and is in no inbox, no queue and not dead-lettered", w.what, id, u.orderID)
		if u.undecided {
			l.InFlight--
			l.unaccounted(id, u.orderID, "nothing became of order %s", u.orderID)
		}
	}
	clear(suspects)
	return true, nil
}

const decidedSinceSQL = `select order_id from inventory_orders where order_id = any ($1)`

// hearMeanwhile takes those that were heard out of the suspects. An order that
// has waited for one of them stays in flight, since it was decided after the
// first look; but decided it must be, in the transaction that heard.
func (l *look) hearMeanwhile(ctx context.Context, suspects map[string]unheard, heard map[string]bool) error {
	var orders []string
	for id := range heard {
		if u := suspects[id]; u.undecided {
			orders = append(orders, u.orderID)
		}
	}
	decided := make(map[string]bool)
	if err := lookUp(ctx, l.src.Inventory, decidedSinceSQL, orders, decided); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(heard)) {
		u := suspects[id]
		delete(suspects, id)
		if u.undecided && !decided[u.orderID] {
			l.violation(inboxWithoutWork, id, u.orderID, "inventory has heard %s and has done nothing for order %s", id, u.orderID)
			l.InFlight--
			l.unaccounted(id, u.orderID, "nothing became of order %s", u.orderID)
		}
	}
	return nil
}

const stillCreatedSQL = `select order_id from orders where order_id = any ($1) and status = 'created'`

// resolveUnanswered decides about orders whose answer was pruned. Which message
// it is nobody knows any more, so it may be any that waits or is dead.
func (l *look) resolveUnanswered(ctx context.Context) error {
	if len(l.unanswered) == 0 || !l.knowsDead(back) || len(l.dead[back.queue].ids) > 0 {
		return nil
	}
	// The queue first: what has left it has arrived.
	depth, err := l.src.Broker.depth(ctx, back.queue)
	if err != nil || depth.messages > 0 {
		return err
	}
	created := make(map[string]bool)
	if err := lookUp(ctx, l.src.Orders, stillCreatedSQL, l.unanswered, created); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(created)) {
		l.violation(statusDisagrees, "", id, "order %s is created although inventory has decided it, and the answer has never arrived", id)
	}
	return nil
}
