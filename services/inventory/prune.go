package inventory

import (
	"context"
	"time"

	"example.com/baton/shared/inbox"
	"example.com/baton/shared/outbox"
)

// prune removes what is kept no longer, now and then until ctx is done. Orders
// and reservations are never among it.
func (s *service) prune(ctx context.Context) {
	tick := time.NewTicker(s.PruneEvery)
	defer tick.Stop()
	for {
		s.pruned(ctx, "published answers", func() (int64, error) { return outbox.Prune(ctx, s.db, s.OutboxKeep) })
		s.pruned(ctx, "inbox ids", func() (int64, error) { return inbox.Prune(ctx, s.db, s.InboxKeep) })
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *service) pruned(ctx context.Context, what string, prune func() (int64, error)) {
	switch n, err := prune(); {
	case ctx.Err() != nil:
	case err != nil:
		s.log.Warn("not pruned, trying again later", "what", what, "err", err)
	case n > 0:
		s.log.Info("pruned", "what", what, "rows", n)
	}
}
