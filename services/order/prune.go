package order

import (
	"context"
	"fmt"
	"time"

	"example.com/baton/shared/inbox"
	"example.com/baton/shared/outbox"
)

// prune removes what is kept no longer, now and then until ctx is done.
func (s *service) prune(ctx context.Context) {
	tick := time.NewTicker(s.PruneEvery)
	defer tick.Stop()
	for {
		for _, p := range []struct {
			what string
			do   func() (int64, error)
		}{
			{"published messages", func() (int64, error) { return outbox.Prune(ctx, s.db, s.OutboxKeep) }},
			{"inbox ids", func() (int64, error) { return inbox.Prune(ctx, s.db, s.InboxKeep) }},
			{"idempotency keys", func() (int64, error) { return s.pruneKeys(ctx) }},
		} {
			switch n, err := p.do(); {
			case ctx.Err() != nil:
				return
			case err != nil:
				s.log.Warn("nothing pruned, trying again later", "what", p.what, "err", err)
			case n > 0:
				s.log.Info("pruned", "what", p.what, "rows", n)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

const pruneKeysSQL = `
delete from idempotency_keys where key = any (array (
  select key from idempotency_keys
  where created_at < now() - $1::interval
  order by created_at limit $2 for update skip locked))`

// pruneAtOnce bounds one delete, so that no request waits long for a key.
const pruneAtOnce = 1000

func (s *service) pruneKeys(ctx context.Context) (total int64, err error) {
	for {
		tag, err := s.db.Exec(ctx, pruneKeysSQL, s.KeyKeep, pruneAtOnce)
		if err != nil {
			return total, fmt.Errorf("prune idempotency keys: %w", err)
		}
		total += tag.RowsAffected()
		if tag.RowsAffected() < pruneAtOnce {
			return total, nil
		}
	}
}
