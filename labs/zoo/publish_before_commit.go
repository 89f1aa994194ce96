package zoo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// publishBeforeCommit takes an order and sends its event from within the
// transaction, confirmed and all, and writes down that it was sent.
//
// Looks like: everything in one function, and an error of the broker rolls the
// order back.
//
// Why: the transaction seems to hold the event too. It holds only what
// PostgreSQL knows of: what has left for the broker does not come back.
//
// Breaks: when the process dies after the confirm, or the commit fails. Stock is
// then reserved for an order that nobody has placed, for ever. And while all goes
// well inventory may answer before the order is there to be answered, and the
// transaction holds its locks for as long as the broker takes.
//
// Right: services/order/place.go: place
func publishBeforeCommit(ctx context.Context, s *stage) error {
	return s.placeOrders(ctx, func(ctx context.Context, o order) error {
		m, err := message(o.event)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			if err := insertOrder(ctx, tx, o); err != nil {
				return err
			}
			if err := s.send(ctx, m); err != nil { // the mistake
				return err
			}
			if err := s.at(ctx, "published", o.id); err != nil {
				return err
			}
			return recordSent(ctx, tx, m)
		})
	})
}
