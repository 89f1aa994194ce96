package order

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// timelineStep is something that happened to an order, as its rows have it. The
// names are those of the steps that the libraries report, where there is one.
type timelineStep struct {
	Step    string      `json:"step"`
	At      events.Time `json:"at"`
	EventID string      `json:"eventId"`
	Detail  string      `json:"detail,omitempty"`
}

// getTimeline is GET /timeline/{orderId}: what this service knows of an order's
// way, by time. It is read from rows alone, so it survives any crash.
func (s *service) getTimeline(w http.ResponseWriter, r *http.Request) error {
	id, err := orderID(chi.URLParam(r, "orderId"))
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded(r.Context())
	defer cancel()
	o, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	rows, err := outbox.OfAggregate(ctx, s.db, id)
	if err != nil {
		return err
	}
	found, err := s.db.Query(ctx, answersOfSQL, id)
	if err != nil {
		return fmt.Errorf("answers to order %s: %w", id, err)
	}
	answers, err := pgx.CollectRows(found, pgx.RowToStructByPos[answerRow])
	if err != nil {
		return fmt.Errorf("answers to order %s: %w", id, err)
	}

	steps := []timelineStep{{
		"order.accepted", o.CreatedAt, o.EventID,
		fmt.Sprintf("%s %s for customer %s", o.Amount, o.Currency, o.CustomerID),
	}}
	for _, row := range rows {
		steps = append(steps, outboxSteps(row, s.Lease)...)
	}
	for _, a := range answers {
		steps = append(steps, timelineStep{"consumer.committed", events.At(a.ReceivedAt), a.EventID, a.detail()})
	}
	// The order is accepted first, even when the clocks disagree by a moment.
	slices.SortStableFunc(steps[1:], func(a, b timelineStep) int { return a.At.Compare(b.At.Time) })
	reply(w, http.StatusOK, "application/json", struct {
		OrderID string         `json:"orderId"`
		EventID string         `json:"eventId"`
		Steps   []timelineStep `json:"steps"`
	}{id, o.EventID, steps})
	return nil
}

// outboxSteps are the steps that a row of the outbox still shows.
func outboxSteps(row outbox.Row, lease time.Duration) []timelineStep {
	steps := []timelineStep{{
		"order.committed", events.At(row.CreatedAt), row.EventID,
		fmt.Sprintf("%s, sequence %d, in one transaction with the order", row.EventType, row.Sequence),
	}}
	switch {
	case row.PublishedAt != nil:
		steps = append(steps, timelineStep{"relay.settled", events.At(*row.PublishedAt), row.EventID, row.EventType + ", confirmed by the broker"})
	case row.FailedAt != nil:
		steps = append(steps, timelineStep{"relay.failed", events.At(*row.FailedAt), row.EventID, row.LastError})
	case row.LockedUntil != nil:
		// The row keeps the end of the lease, so this is the claim or its last renewal.
		steps = append(steps, timelineStep{"relay.claimed", events.At(row.LockedUntil.Add(-lease)), row.EventID, "by " + row.LockedBy})
	case row.Attempts > 0:
		steps = append(steps, timelineStep{
			"relay.waiting", events.At(row.NextAttemptAt), row.EventID,
			fmt.Sprintf("next try after %d refused: %s", row.Attempts, row.LastError),
		})
	}
	return steps
}

const answersOfSQL = `
select event_id, event_type, coalesce(reason, ''), effect, order_status, received_at
from order_answers where order_id = $1 order by received_at, event_id`

type answerRow struct {
	EventID, EventType, Reason, Effect, OrderStatus string
	ReceivedAt                                      time.Time
}

func (a answerRow) detail() string {
	text := fmt.Sprintf("%s, %s while the order was %s", a.EventType, a.Effect, a.OrderStatus)
	if a.Reason != "" {
		text += ": " + a.Reason
	}
	return text
}
