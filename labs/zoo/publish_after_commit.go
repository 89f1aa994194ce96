package zoo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// publishAfterCommit takes an order, commits it, and then sends its event. The
// table of events is a record of what was sent.
//
// Looks like: first the database, then the broker, each with its error looked
// at. Often the second half is a "post-commit hook", or a goroutine.
//
// Why: publishing inside the transaction is known to be wrong, and this is the
// other way round.
//
// Breaks: when the process dies between the two, or the broker is away for longer
// than the caller waits. The customer has an order that inventory never hears of.
// Confirms, retries and logs do not help: what would retry is what has died.
//
// Right: services/order/place.go: place
func publishAfterCommit(ctx context.Context, s *stage) error {
	return s.placeOrders(ctx, func(ctx context.Context, o order) error {
		m, err := message(o.event)
		if err != nil {
			return err
		}
		err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return insertOrder(ctx, tx, o) })
		if err != nil {
			return err
		}
		if err := s.at(ctx, "committed", o.id); err != nil {
			return err
		}
		if err := s.send(ctx, m); err != nil { // the mistake: nobody but us knows that this is still to be done
			return err
		}
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return recordSent(ctx, tx, m) })
	})
}
