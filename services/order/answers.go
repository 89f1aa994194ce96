package order

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/inbox"
	"example.com/baton/shared/rabbit"
)

// What an answer of inventory does to its order.
const (
	effectApplied       = "applied"       // the order changed
	effectRepeated      = "repeated"      // the order was like that already
	effectLate          = "late"          // the order was cancelled meanwhile; inventory hears of it and releases
	effectContradiction = "contradiction" // inventory said the opposite before; somebody has to look
)

// verdicts is the whole state table of answers: every state of an order against
// every answer. The order changes only where the effect is "applied".
var verdicts = map[[2]string]struct{ status, effect string }{
	{statusCreated, events.InventoryReserved}:   {statusReserved, effectApplied},
	{statusCreated, events.InventoryRejected}:   {statusRejected, effectApplied},
	{statusReserved, events.InventoryReserved}:  {statusReserved, effectRepeated},
	{statusReserved, events.InventoryRejected}:  {statusReserved, effectContradiction},
	{statusRejected, events.InventoryReserved}:  {statusRejected, effectContradiction},
	{statusRejected, events.InventoryRejected}:  {statusRejected, effectRepeated},
	{statusCancelled, events.InventoryReserved}: {statusCancelled, effectLate},
	{statusCancelled, events.InventoryRejected}: {statusCancelled, effectLate},
}

// handleTimeout bounds one batch of answers. What takes longer is an outage, and
// the batch is held and tried again.
const handleTimeout = 20 * time.Second

// applyAnswers handles deliveries of the consumer. Each has its verdict: nil is
// acknowledged, permanent errors end in the dead-letter queue, outages are held.
func (s *service) applyAnswers(ctx context.Context, batch []rabbit.Delivery) []error {
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()

	errs := make([]error, len(batch))
	answers := make(map[string]events.Event, len(batch))
	var ids []string
	for i, d := range batch {
		e, err := readAnswer(d)
		if err != nil {
			errs[i] = rabbit.Permanent(err)
			continue
		}
		if _, copied := answers[e.EventID]; !copied {
			ids = append(ids, e.EventID)
			answers[e.EventID] = e
		}
	}
	applied := make(map[string]answer, len(ids))
	results := inbox.HandleBatch(ctx, s.db, consumerName, ids, func(tx pgx.Tx, fresh []string) error {
		list := make([]events.Event, len(fresh))
		for i, id := range fresh {
			list[i] = answers[id]
		}
		done, err := applyIn(ctx, tx, list, s.MaxEventAge)
		for _, a := range done {
			applied[a.EventID] = a
		}
		return err
	})
	verdict := make(map[string]error, len(ids))
	for i, id := range ids {
		if verdict[id] = results[i]; inbox.Outage(results[i]) {
			verdict[id] = rabbit.Unavailable(results[i])
		}
	}
	for i, d := range batch {
		if errs[i] != nil {
			continue
		}
		if errs[i] = verdict[d.MessageID]; errs[i] == nil {
			s.note(applied[d.MessageID])
			delete(applied, d.MessageID) // further copies changed nothing
		}
	}
	return errs
}

// note counts an answer that is committed; the zero value is a copy of one.
func (s *service) note(a answer) {
	if a.effect == "" {
		s.metrics.duplicates.Inc()
		return
	}
	s.metrics.answers.WithLabelValues(a.EventType, a.effect).Inc()
	if a.effect == effectContradiction {
		s.log.Error("inventory contradicts itself; see order_answers", "message_id", a.EventID, "topic", a.EventType,
			"order_id", a.OrderID, "status", a.before)
	}
}

// readAnswer takes the event out of a delivery. The properties and the body must
// say the same, because the inbox goes by one and the order by the other.
func readAnswer(d rabbit.Delivery) (events.Event, error) {
	e, err := events.Decode(d.Body)
	switch {
	case err != nil:
		return e, err
	case e.EventID != d.MessageID:
		return e, fmt.Errorf("message_id is %q and eventId %q", d.MessageID, e.EventID)
	case e.EventType != d.Type:
		return e, fmt.Errorf("type is %q and eventType %q", d.Type, e.EventType)
	case e.EventType != events.InventoryReserved && e.EventType != events.InventoryRejected:
		return e, fmt.Errorf("an answer of inventory cannot be a %s", e.EventType)
	}
	return e, nil
}

// answer is an event of inventory with what it did.
type answer struct {
	events.Event
	before string // status of the order when it came
	effect string
}

// Waiting for a row has an end of its own, so that one order that somebody holds
// on to does not keep the answers to all others waiting.
const lockTimeoutSQL = `select set_config('lock_timeout', '2s', true)`

// The rows are locked in the order of their ids, as everywhere, so that two
// transactions never wait for each other in a circle.
const lockOrdersSQL = `
select order_id, status, now() from orders where order_id = any ($1) order by order_id for update`

const updateOrdersSQL = `
update orders o set status = u.status, reason = nullif(u.reason, ''), updated_at = now()
from unnest($1::text[], $2::text[], $3::text[]) as u (order_id, status, reason)
where o.order_id = u.order_id`

// An answer that comes back after its id was pruned from the inbox is here
// already.
const recordAnswersSQL = `
insert into order_answers (event_id, order_id, event_type, reason, effect, order_status)
select a.event_id, a.order_id, a.event_type, nullif(a.reason, ''), a.effect, a.order_status
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
  as a (event_id, order_id, event_type, reason, effect, order_status)
on conflict (event_id) do nothing`

// applyIn applies answers to their orders, in the order given, and records each.
func applyIn(ctx context.Context, tx pgx.Tx, list []events.Event, maxAge time.Duration) ([]answer, error) {
	orders := make([]string, len(list))
	for i, e := range list {
		orders[i] = e.OrderID
	}
	status := make(map[string]string, len(list))
	var now time.Time
	lock := &pgx.Batch{}
	lock.Queue(lockTimeoutSQL)
	lock.Queue(lockOrdersSQL, orders).Query(func(rows pgx.Rows) error {
		var id, current string
		_, err := pgx.ForEachRow(rows, []any{&id, &current, &now}, func() error { status[id] = current; return nil })
		return err
	})
	if err := tx.SendBatch(ctx, lock).Close(); err != nil {
		return nil, fmt.Errorf("lock orders: %w", err)
	}

	var changed, recorded columns
	done := make([]answer, len(list))
	for i, e := range list {
		before, known := status[e.OrderID]
		switch {
		case !known:
			return nil, rabbit.Permanent(fmt.Errorf("there is no order %s", e.OrderID))
		case now.Sub(e.OccurredAt.Time) > maxAge:
			return nil, rabbit.Permanent(fmt.Errorf("too old to deduplicate: occurred at %s", e.OccurredAt.UTC().Format(time.RFC3339)))
		}
		v := verdicts[[2]string{before, e.EventType}]
		if v.effect == effectApplied {
			status[e.OrderID] = v.status
			changed.add(e.OrderID, v.status, e.Reason)
		}
		recorded.add(e.EventID, e.OrderID, e.EventType, e.Reason, v.effect, before)
		done[i] = answer{e, before, v.effect}
	}

	b := &pgx.Batch{}
	if len(changed) > 0 {
		b.Queue(updateOrdersSQL, changed.args()...)
	}
	b.Queue(recordAnswersSQL, recorded.args()...)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("apply answers: %w", err)
	}
	return done, nil
}

// columns gathers rows for unnest, which takes them column by column.
type columns [][]string

func (c *columns) add(row ...string) {
	if *c == nil {
		*c = make(columns, len(row))
	}
	for i, value := range row {
		(*c)[i] = append((*c)[i], value)
	}
}

func (c columns) args() []any {
	args := make([]any, len(c))
	for i, column := range c {
		args[i] = column
	}
	return args
}
