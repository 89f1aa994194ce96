package check

import (
	"context"
	"time"

	"github.com/oklog/ulid/v2"
)

// sentRow is a row of an outbox.
type sentRow struct {
	EventID, OrderID, Type, Status string
	Sequence                       int64
	Attempts                       int
	PublishedAt                    *time.Time
}

func (r sentRow) key() string { return r.EventID }

const sentSQL = `
select event_id, aggregate_id, event_type, status, sequence, attempt_count, published_at
from outbox_messages order by event_id collate "C"`

// heardRow is a row of an inbox.
type heardRow struct {
	EventID, Consumer string
}

func (r heardRow) key() string { return r.EventID }

const inboxSQL = `select event_id, consumer_name from inbox_messages order by event_id collate "C"`

// events holds what one service has sent against what the other has heard.
func (l *look) events(ctx context.Context, from, to *snapshot, w way) {
	sent := open[sentRow](ctx, from, "sent", sentSQL)
	inbox := open[heardRow](ctx, to, "heard", inboxSQL)
	merge(func(id string) {
		rows, heard := sent.take(id), inbox.take(id)
		if len(heard) > 1 {
			l.violation(inboxTwice, id, "", "%s is in the inbox of the %s service for %s and for %s", id, w.to, heard[0].Consumer, heard[1].Consumer)
		}
		switch {
		case len(rows) == 0 && !pruned(id, from.now, l.opts.OutboxKeep):
			l.unknown[w.from] = append(l.unknown[w.from], id)
		case len(rows) == 1:
			l.sent(rows[0], len(heard) > 0, from.now, w)
		}
	}, sent, inbox)
}

// pruned reports whether the outbox row of an event may have been removed: the
// id is a ULID, which tells when it was made.
func pruned(eventID string, now time.Time, keep time.Duration) bool {
	id, err := ulid.ParseStrict(eventID)
	return err == nil && now.Sub(id.Timestamp()) > keep
}

func (l *look) sent(r sentRow, heard bool, now time.Time, w way) {
	if l.opts.NoFaults && r.Attempts > 0 {
		l.violation(attemptCharged, r.EventID, r.OrderID, "%d attempts are charged to %s %s", r.Attempts, r.Type, r.EventID)
	}
	if l.opts.Copies != nil {
		l.sentBefore[r.EventID] = true
	}
	if copies := l.opts.Copies[r.EventID]; l.opts.NoFaults && copies > 1 && r.Status != "Failed" {
		l.violation(tooManyCopies, r.EventID, r.OrderID, "%s %s was sent %d times", r.Type, r.EventID, copies)
	}
	switch r.Status {
	case "Pending", "Processing":
		l.Messages.Unsent++
		l.isUnderWay(r.EventID, r.OrderID)
	case "Failed":
		l.Messages.Failed++
		l.failed = append(l.failed, r.EventID)
	case "Published":
		// With faults a tap may have missed what was heard.
		if l.opts.Copies != nil && l.opts.Copies[r.EventID] == 0 && (!heard || l.opts.NoFaults) && !l.dead[w.queue].ids[r.EventID] {
			l.violation(tooFewCopies, r.EventID, r.OrderID, "%s %s is Published and was never sent", r.Type, r.EventID)
		}
		age := now.Sub(*r.PublishedAt)
		if !heard && !l.dead[w.queue].ids[r.EventID] && age < l.opts.InboxKeep {
			l.unheard[w.queue][r.EventID] = unheard{orderID: r.OrderID, age: age}
		}
	}
}

// arrived reports whether a row's message is in the inbox of its receiver, as
// far as that can be told.
func (l *look) arrived(r sentRow, w way) bool {
	if r.Status != "Published" || l.dead[w.queue].ids[r.EventID] {
		return false
	}
	_, unheard := l.unheard[w.queue][r.EventID]
	return !unheard
}
