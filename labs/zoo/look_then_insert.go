package zoo

import (
	"context"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

const lookSQL = `select exists (select 1 from inbox_messages where consumer_name = $1 and event_id = $2)`

// lookThenInsert looks whether an event was handled and, if not, handles it and
// records that, all in one transaction.
//
// Looks like: `if exists { return }`. At first the unique keys of the schema
// caught it, as errors in the log at busy times; each was silenced by "on conflict
// do nothing", until only the update without a key was left to count twice.
//
// Why: a transaction is thought to keep others out. At read committed two of them
// look, both see nothing, and both go on.
//
// Breaks: when two copies of an event are handled at once, by two consumers: a
// message that was sent again meets its first copy, or a queue is handed over
// while its old consumer is still at work. Stock is taken twice for one order.
//
// Right: shared/inbox/inbox.go: Handle
func lookThenInsert(ctx context.Context, s *stage) error {
	return s.consume(ctx, func(ctx context.Context, e events.Event) error {
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			var handled bool
			if err := tx.QueryRow(ctx, lookSQL, queueName, e.EventID).Scan(&handled); err != nil || handled {
				return err
			}
			if err := s.at(ctx, "looked", e.EventID); err != nil {
				return err
			}
			return reserveUnlessThere(ctx, tx, e) // the mistake: what was seen need not be true any more
		})
	})
}

func reserveUnlessThere(ctx context.Context, tx pgx.Tx, e events.Event) error {
	m, err := answer(ctx, tx, e)
	if err != nil {
		return err
	}
	var b pgx.Batch
	b.Queue(decideSQL, e.OrderID, e.EventID)
	for sku, quantity := range bySKU(e.Items) {
		b.Queue(takeStockSQL, sku, quantity)
		b.Queue(reserveSQL+` on conflict (order_id, sku) do nothing`, e.OrderID, sku, quantity, e.EventID)
	}
	const unlessAnswered = `not exists (select 1 from outbox_messages o where o.aggregate_id = m.aggregate_id)`
	if err := outbox.QueueIf(&b, unlessAnswered, m); err != nil {
		return err
	}
	b.Queue(recordSQL, queueName, e.EventID)
	return tx.SendBatch(ctx, &b).Close()
}
