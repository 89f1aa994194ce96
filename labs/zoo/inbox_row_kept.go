package zoo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
)

// inboxRowKept records an event and carries it out in one transaction, and keeps
// the record when the work fails.
//
// Looks like: work under a savepoint, so that a failure is rolled back and does
// not spoil the transaction, and an inbox that "logs every message we have seen".
// The failure is returned, and the message comes again.
//
// Why: the inbox is taken for a record of what arrived. It is one of what was
// done, and that is all its row may mean.
//
// Breaks: at the first failure of any message that would have passed at the
// second: a lock that was waited for too long, a row that was not there yet. The
// retry finds the record, and the message is acknowledged as a duplicate.
//
// Right: shared/inbox/inbox.go: Handle
func inboxRowKept(ctx context.Context, s *stage) error {
	return s.consume(ctx, func(ctx context.Context, e events.Event) error {
		var failed error
		err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			recorded, err := tx.Exec(ctx, recordSQL, queueName, e.EventID)
			if err != nil {
				return fmt.Errorf("record in inbox: %w", err)
			}
			if recorded.RowsAffected() == 0 {
				return nil
			}
			failed = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error { return s.reserve(ctx, savepoint, e) })
			return nil // the mistake: this commits the record without the work
		})
		if err != nil {
			return err
		}
		return failed
	})
}
