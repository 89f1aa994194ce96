package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/inbox"
	"example.com/baton/shared/rabbit"
)

// consumerName is the name under which handled events are recorded in the inbox.
// Changing it makes every event new again.
const consumerName = "inventory.order-events"

// batchTimeout is how long a batch may take, one by one after a failure
// included. PostgreSQL's own timeouts end a statement long before; this one is
// for a database that does not even say so.
const batchTimeout = time.Minute

// handler books orders. Its Handle is what rabbit.Consumer calls.
type handler struct {
	db     inbox.Beginner
	maxAge time.Duration // an older event that the inbox does not know is refused
	wake   func()        // answers were committed
	count  func(outcome)
}

// errTooOld is a delivery that may have been handled and forgotten since.
var errTooOld = errors.New("too old to deduplicate")

// incoming is a delivery that could be read.
type incoming struct {
	events.Event
	trace string // traceparent, for the answer
}

// Handle books a batch in one transaction and returns a verdict for each
// delivery. A bad one harms only itself.
func (h *handler) Handle(ctx context.Context, batch []rabbit.Delivery) []error {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()

	verdicts := make([]error, len(batch))
	readable := make([]int, 0, len(batch)) // indices into batch
	ids := make([]string, 0, len(batch))
	byID := make(map[string]incoming, len(batch)) // the first of several copies
	for i, d := range batch {
		e, err := decode(d)
		if err != nil {
			verdicts[i] = rabbit.Permanent(err)
			continue
		}
		readable, ids = append(readable, i), append(ids, e.EventID)
		if _, twice := byID[e.EventID]; !twice {
			byID[e.EventID] = e
		}
	}
	// What the transaction that had the last word on an id made of it: an id may
	// be in one of the whole batch that fails, and then in one of its own.
	outcomes := make(map[string]outcome, len(ids))
	errs := inbox.HandleBatch(ctx, h.db, consumerName, ids, func(tx pgx.Tx, fresh []string) error {
		arrived := make([]incoming, len(fresh))
		for i, id := range fresh {
			arrived[i] = byID[id]
		}
		return h.book(ctx, tx, arrived, outcomes)
	})
	committed := false
	for n, i := range readable {
		verdicts[i] = h.verdict(errs[n], byID[ids[n]], outcomes)
		committed = committed || verdicts[i] == nil
	}
	if committed {
		h.wake()
	}
	return verdicts
}

// verdict says what is to become of a delivery of e, and counts what was done.
func (h *handler) verdict(err error, e incoming, outcomes map[string]outcome) error {
	out, fresh := outcomes[e.EventID]
	switch {
	case err != nil && inbox.Outage(err):
		return rabbit.Unavailable(err)
	case err != nil:
		return err
	case out == tooOld:
		return rabbit.Permanent(fmt.Errorf("%w: it occurred at %s, and ids are remembered for events up to %s old",
			errTooOld, e.OccurredAt.Format(time.RFC3339), h.maxAge))
	case !fresh:
		out = duplicate
	}
	h.count(out)
	outcomes[e.EventID] = duplicate // as is any other copy in this batch
	return nil
}

// decode reads a delivery. What it refuses no further attempt will mend.
func decode(d rabbit.Delivery) (incoming, error) {
	e, err := events.Decode(d.Body)
	switch {
	case err != nil:
		return incoming{}, err
	case e.EventID != d.MessageID:
		return incoming{}, fmt.Errorf("message_id is %.80q, eventId is %.80q", d.MessageID, e.EventID)
	case e.EventType != d.Type:
		return incoming{}, fmt.Errorf("type is %.80q, eventType is %q", d.Type, e.EventType)
	case e.EventType != events.OrderCreated && e.EventType != events.OrderCancelled:
		return incoming{}, fmt.Errorf("%w: %q is not for inventory", events.ErrUnknown, e.EventType)
	}
	trace, _ := d.Headers["traceparent"].(string)
	if len(trace) > 64 {
		trace = "" // 55 bytes in its only version
	}
	return incoming{Event: e, trace: trace}, nil
}

// book handles events that are new to the inbox, in the transaction that
// records them, and notes in outcomes what became of each.
//
// It takes locks in the order that everything in this service does: inbox ids
// (they are taken when it is called), order ids, skus, each sorted. So two
// batches never wait for each other in a circle.
func (h *handler) book(ctx context.Context, tx pgx.Tx, arrived []incoming, outcomes map[string]outcome) error {
	now, err := databaseTime(ctx, tx)
	if err != nil {
		return err
	}
	arrived, old := splitByAge(arrived, now.Add(-h.maxAge))
	for _, id := range old {
		outcomes[id] = tooOld
	}
	// Handled means recorded, and these are not: on its way to the dead letters a
	// message must not become a duplicate.
	if err := inbox.Forget(ctx, tx, consumerName, old...); err != nil || len(arrived) == 0 {
		return err
	}
	l, err := openLedger(ctx, tx, arrived)
	if err != nil {
		return err
	}
	for _, e := range arrived {
		outcomes[e.EventID] = l.enter(e)
	}
	return l.write(ctx, tx, now)
}

// splitByAge takes out what occurred before oldest.
func splitByAge(arrived []incoming, oldest time.Time) (young []incoming, old []string) {
	young = arrived[:0]
	for _, e := range arrived {
		if e.OccurredAt.Before(oldest) {
			old = append(old, e.EventID)
		} else {
			young = append(young, e)
		}
	}
	return young, old
}
