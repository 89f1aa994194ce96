package zoo

import (
	"context"
	"fmt"
)

// Right in a transaction that is held until the rows are marked, or as part of a
// statement that marks them. Alone it locks until its own end.
const lockPendingSQL = `
select event_id, event_type, occurred_at, payload from outbox_messages
where status = 'Pending'
order by created_at, event_id
limit 100
for update skip locked`

const publishedSQL = `update outbox_messages set status = 'Published', published_at = now() where event_id = $1`

// lockWithoutTransaction relays what it has selected for update skip locked,
// through the pool.
//
// Looks like: the query that everybody recommends for a queue in PostgreSQL.
//
// Why: "skip locked" is remembered as what keeps two workers apart. It is the
// lock that does, and a statement outside of a transaction is a transaction of
// its own: the lock ends with it, before the first message is sent.
//
// Breaks: from the second instance on, all the time. Every message may leave once
// for each relay. Consumers absorb it, so nobody notices but the broker's bill.
//
// Right: shared/outbox/claim.go: claim
func lockWithoutTransaction(ctx context.Context, s *stage) error {
	return again(ctx, func() error {
		msgs, err := collect(s.db.Query(ctx, lockPendingSQL)) // the mistake
		if err != nil {
			return fmt.Errorf("select: %w", err)
		}
		if len(msgs) == 0 {
			return nil
		}
		if err := s.at(ctx, "selected", msgs[0].ID); err != nil {
			return err
		}
		for _, m := range msgs {
			if err := s.send(ctx, m); err != nil {
				s.log.Warn("not sent, trying again", "message_id", m.ID, "err", err)
				continue
			}
			if _, err := s.db.Exec(ctx, publishedSQL, m.ID); err != nil {
				return fmt.Errorf("mark %s: %w", m.ID, err)
			}
		}
		return nil
	})
}
