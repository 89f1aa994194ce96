package zoo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
)

const recordSQL = `
insert into inbox_messages (consumer_name, event_id) values ($1, $2)
on conflict (consumer_name, event_id) do nothing`

// inboxBeforeWork records that it has an event, and then carries it out.
//
// Looks like: `if !dedup.FirstTime(id) { return nil }` at the top of a handler,
// with a table, a cache or a middleware behind it that the handler's transaction
// does not know.
//
// Why: removing duplicates is thought of as a thing of its own, to be put in
// front of any handler.
//
// Breaks: when the process dies between the two commits. The broker delivers
// again, as it should, and the copy is dropped as a duplicate of something that
// never happened. No consumer, however right, can mend it afterwards.
//
// Right: shared/inbox/inbox.go: Handle
func inboxBeforeWork(ctx context.Context, s *stage) error {
	return s.consume(ctx, func(ctx context.Context, e events.Event) error {
		recorded, err := s.db.Exec(ctx, recordSQL, queueName, e.EventID) // the mistake: committed, on its own
		if err != nil {
			return fmt.Errorf("record in inbox: %w", err)
		}
		if recorded.RowsAffected() == 0 {
			return nil
		}
		if err := s.at(ctx, "recorded", e.EventID); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return s.reserve(ctx, tx, e) })
	})
}
