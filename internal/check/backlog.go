package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// backlog is what is on its way, as far as that can be had at little cost.
type backlog struct {
	Unsettled
	at        map[string]time.Time // of the first look, by service
	old       int                  // rows not sent that were there at the first look
	consumers map[string]int       // by queue, of those that are read
}

func (b backlog) any() bool { return b.Messages.Unsent > 0 || len(b.Queues) > 0 }

// The index of open rows answers it.
const backlogSQL = `
select now(), count(*), count(*) filter (where $1::timestamptz is null or created_at <= $1)
from outbox_messages where published_at is null and failed_at is null`

// readBacklog looks at the outboxes and the queues. first is what the first look
// has found, or nil.
func readBacklog(ctx context.Context, src Sources, first *backlog) (backlog, error) {
	b := backlog{at: make(map[string]time.Time), consumers: make(map[string]int)}
	b.Queues = make(map[string]int)
	for service, db := range map[string]Querier{"order": src.Orders, "inventory": src.Inventory} {
		var since *time.Time
		if first != nil {
			t := first.at[service]
			since = &t
		}
		var now time.Time
		var unsent, old int
		if err := db.QueryRow(ctx, backlogSQL, since).Scan(&now, &unsent, &old); err != nil {
			return b, fmt.Errorf("read the outbox of %s: %w", service, err)
		}
		b.at[service] = now
		b.Messages.Unsent += unsent
		b.old += old
	}
	for _, w := range []way{forth, back} {
		names, err := src.Broker.sharing(ctx, w.queue)
		if err != nil {
			return b, err
		}
		for _, main := range names {
			for _, name := range []string{main, main + ".retry"} {
				q, err := src.Broker.queue(ctx, name)
				if err != nil {
					return b, err
				}
				if q.Messages > 0 {
					b.Queues[name] = q.Messages
				}
				if name == main {
					b.consumers[name] = q.Consumers
				}
			}
		}
	}
	return b, nil
}

// stuckSince says why waiting has not helped, if it has not.
func (b backlog) stuckSince(first backlog) string {
	if b.old > 0 && b.old >= first.old {
		return fmt.Sprintf("none of the %d messages that were not sent at first has been sent since", first.old)
	}
	for _, name := range slices.Sorted(maps.Keys(b.consumers)) {
		if b.Queues[name] > 0 && b.consumers[name] == 0 {
			return fmt.Sprintf("nobody consumes %s", name)
		}
	}
	return ""
}
