package zoo

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// The mistake: a row that is Processing is somebody's for ever.
const claimPendingSQL = `
with candidates as materialized (
  select event_id from outbox_messages
  where status = 'Pending'
  order by created_at, event_id
  limit 10
  for update skip locked
)
update outbox_messages
set status = 'Processing', locked_by = $1, locked_until = now() + interval '1 second'
where event_id in (select event_id from candidates)
returning event_id, event_type, occurred_at, payload`

const settleClaimSQL = `
update outbox_messages
set status = 'Published', published_at = now(), locked_by = null, locked_until = null
where status = 'Processing' and locked_by = $1 and event_id = $2`

// claimWithoutExpiry relays rows that it has claimed, and claims what is Pending.
//
// Looks like: a proper claim, with an id of its own and a lease. Only that nobody
// looks at locked_until again; it was to be "a job that cleans up", later.
//
// Why: while relays live there is nothing to see, and a test that kills one waits
// for the next order, not for the ones in hand.
//
// Breaks: when a relay dies or is redeployed with rows in hand. They are neither
// sent nor failed, and a count of Pending says that all is well.
//
// Right: shared/outbox/claim.go: claim
func claimWithoutExpiry(ctx context.Context, s *stage) error {
	return again(ctx, func() error {
		claim := uuid.NewString()
		msgs, err := collect(s.db.Query(ctx, claimPendingSQL, claim))
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if len(msgs) == 0 {
			return nil
		}
		if err := s.at(ctx, "claimed", msgs[0].ID); err != nil {
			return err
		}
		for _, m := range msgs {
			if err := s.send(ctx, m); err != nil {
				s.log.Warn("not sent, its lease will run out", "message_id", m.ID, "err", err)
				continue
			}
			if _, err := s.db.Exec(ctx, settleClaimSQL, claim, m.ID); err != nil {
				return fmt.Errorf("settle %s: %w", m.ID, err)
			}
		}
		return nil
	})
}
