package zoo

import (
	"context"
	"fmt"
)

// relayName is from the configuration, which all replicas share. With a host
// name in its place it happens only when a process is restarted, or paused.
const relayName = "order-relay"

const claimByNameSQL = `
with candidates as materialized (
  select event_id from outbox_messages
  where status = 'Pending' or (status = 'Processing' and locked_until < now())
  order by created_at, event_id
  limit 10
  for update skip locked
)
update outbox_messages
set status = 'Processing', locked_by = $1, locked_until = now() + interval '30 seconds'
where event_id in (select event_id from candidates)
returning event_id, event_type, occurred_at, payload`

const settleByNameSQL = `
update outbox_messages
set status = 'Published', published_at = now(), locked_by = null, locked_until = null
where status = 'Processing' and locked_by = $1`

// fixedLockedBy relays in batches that it claims under its own name, and settles
// a batch by that name.
//
// Looks like: a claim with a lease, and one update for the whole batch: "all that
// is locked by me is sent".
//
// Why: locked_by seems to be there to say who it is. It has to say which claim it
// is: by a name that outlives the claim, another holder's rows look like ours.
//
// Breaks: when two instances have the name at once, or one does after the other:
// rows that a dead or a slow one had claimed are marked as sent by one that never
// saw them. With a list of event ids in the condition it still breaks when a relay
// stalls past its lease: its late update hits rows that are being sent again.
//
// Right: shared/outbox/relay.go: newClaimID
func fixedLockedBy(ctx context.Context, s *stage) error {
	return again(ctx, func() error {
		msgs, err := collect(s.db.Query(ctx, claimByNameSQL, relayName))
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
				s.log.Warn("batch not sent, its lease will run out", "message_id", m.ID, "err", err)
				return nil
			}
		}
		if _, err := s.db.Exec(ctx, settleByNameSQL, relayName); err != nil { // the mistake
			return fmt.Errorf("settle: %w", err)
		}
		return nil
	})
}
