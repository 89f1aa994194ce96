package inventory

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

const updateOrdersSQL = `
update inventory_orders o
set state = n.state, reason = nullif(n.reason, ''), cancel_event_id = nullif(n.cancel, ''), updated_at = now()
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as n (order_id, state, reason, cancel)
where o.order_id = n.order_id`

const insertLinesSQL = `
insert into inventory_reservations (order_id, sku, quantity, status, event_id, released_at)
select n.order_id, n.sku, n.quantity, n.status, n.event_id, case when n.status = 'released' then now() end
from unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[]) as n (order_id, sku, quantity, status, event_id)`

const releaseLinesSQL = `
update inventory_reservations set status = 'released', released_at = now()
where order_id = any ($1) and status = 'reserved'`

const updateStockSQL = `
update stock s set reserved = s.reserved + n.change
from unnest($1::text[], $2::bigint[]) as n (sku, change)
where s.sku = n.sku`

// write stores what was decided, each table in one statement and all of them in
// one round trip.
func (l *ledger) write(ctx context.Context, tx pgx.Tx, now time.Time) error {
	var b pgx.Batch
	l.queueOrders(&b)
	l.queueLines(&b)
	l.queueStock(&b)
	if err := l.queueAnswers(&b, now); err != nil {
		return err
	}
	if b.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("write bookings: %w", err)
	}
	return nil
}

func (l *ledger) queueOrders(b *pgx.Batch) {
	var ids, states, reasons, cancels []string
	for _, o := range l.all {
		if o.state != o.stored {
			ids, states = append(ids, o.id), append(states, string(o.state))
			reasons, cancels = append(reasons, o.reason), append(cancels, o.cancel)
		}
	}
	if len(ids) > 0 {
		b.Queue(updateOrdersSQL, ids, states, reasons, cancels)
	}
}

// queueLines writes lines that are new, those of an order cancelled in the same
// batch too, and releases those that had rows.
func (l *ledger) queueLines(b *pgx.Batch) {
	var ids, skus, states, eventIDs, released []string
	var quantities []int64
	for _, o := range l.all {
		switch {
		case o.booked && o.state == Released:
			released = append(released, o.id)
		case !o.booked:
			for _, held := range o.lines {
				ids, skus, quantities = append(ids, o.id), append(skus, held.sku), append(quantities, held.quantity)
				states, eventIDs = append(states, string(o.state)), append(eventIDs, o.created)
			}
		}
	}
	if len(ids) > 0 {
		b.Queue(insertLinesSQL, ids, skus, quantities, states, eventIDs)
	}
	if len(released) > 0 {
		b.Queue(releaseLinesSQL, released)
	}
}

func (l *ledger) queueStock(b *pgx.Batch) {
	var skus []string
	var changes []int64
	for sku, change := range l.change {
		if change != 0 {
			skus, changes = append(skus, sku), append(changes, change)
		}
	}
	if len(skus) > 0 {
		b.Queue(updateStockSQL, skus, changes)
	}
}

// answerSequence is the place of an answer among inventory's events of the
// order: an order gets one answer, ever. The outbox's unique (aggregate,
// sequence) holds us to it.
const answerSequence = 1

func (l *ledger) queueAnswers(b *pgx.Batch, now time.Time) error {
	if len(l.answers) == 0 {
		return nil
	}
	msgs := make([]outbox.Message, len(l.answers))
	for i, o := range l.answers {
		e := events.Event{
			EventID: events.NewID(now), EventType: events.InventoryReserved, OccurredAt: events.At(now),
			OrderID: o.id, Sequence: answerSequence, Reason: o.reason,
		}
		if o.reason != "" {
			e.EventType = events.InventoryRejected
		}
		payload, err := events.Encode(e)
		if err != nil {
			return err
		}
		msgs[i] = outbox.Message{
			ID: e.EventID, Type: e.EventType, AggregateID: o.id, Sequence: e.Sequence, OccurredAt: now, Payload: payload,
		}
		if o.trace != "" {
			msgs[i].Headers = map[string]string{"traceparent": o.trace}
		}
	}
	return outbox.Queue(b, msgs...)
}
