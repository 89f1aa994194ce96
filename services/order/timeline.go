package order

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// TimelineStep is something that happened to an order, as its rows have it. The
// names are those of the steps that the libraries report, where there is one.
type TimelineStep struct {
	Step    string      `json:"step"`
	At      events.Time `json:"at"`
	EventID string      `json:"eventId"`
	Detail  string      `json:"detail,omitempty"`
}

// getTimeline is GET /timeline/{orderId}: what this service knows of an order's
// way, by time.
func (s *service) getTimeline(w http.ResponseWriter, r *http.Request) error {
	id, err := orderID(chi.URLParam(r, "orderId"))
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded(r.Context())
	defer cancel()
	steps, err := Timeline(ctx, s.db, id, s.Lease)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return noSuchOrder(id)
	case err != nil:
		return err
	}
	reply(w, http.StatusOK, "application/json", struct {
		OrderID string         `json:"orderId"`
		EventID string         `json:"eventId"`
		Steps   []TimelineStep `json:"steps"`
	}{id, steps[0].EventID, steps})
	return nil
}

// Timeline is what the order service's rows say of an order's way, by time. It
// begins with "order.accepted". Being read from rows alone, it survives any
// crash. The lease is that of the relay, to tell when a row was claimed. If
// there is no such order the error wraps [pgx.ErrNoRows].
func Timeline(ctx context.Context, db outbox.DB, id string, lease time.Duration) ([]TimelineStep, error) {
	o, err := findOrder(ctx, db, id)
	if err != nil {
		return nil, err
	}
	rows, err := outbox.OfAggregate(ctx, db, id)
	if err != nil {
		return nil, err
	}
	found, err := db.Query(ctx, answersOfSQL, id)
	if err != nil {
		return nil, fmt.Errorf("answers to order %s: %w", id, err)
	}
	answers, err := pgx.CollectRows(found, pgx.RowToStructByPos[answerRow])
	if err != nil {
		return nil, fmt.Errorf("answers to order %s: %w", id, err)
	}

	steps := []TimelineStep{{
		"order.accepted", o.CreatedAt, o.EventID,
		fmt.Sprintf("%s %s for customer %s", o.Amount, o.Currency, o.CustomerID),
	}}
	for _, row := range rows {
		steps = append(steps, outboxSteps(row, lease)...)
	}
	for _, a := range answers {
		steps = append(steps, TimelineStep{"consumer.committed", events.At(a.ReceivedAt), a.EventID, a.detail()})
	}
	// The order is accepted first, even when the clocks disagree by a moment.
	slices.SortStableFunc(steps[1:], func(a, b TimelineStep) int { return a.At.Compare(b.At.Time) })
	return steps, nil
}

// outboxSteps are the steps that a row of the outbox still shows.
func outboxSteps(row outbox.Row, lease time.Duration) []TimelineStep {
	steps := []TimelineStep{{
		"order.committed", events.At(row.CreatedAt), row.EventID,
		fmt.Sprintf("%s, sequence %d, in one transaction with the order", row.EventType, row.Sequence),
	}}
	switch {
	case row.PublishedAt != nil:
		steps = append(steps, TimelineStep{"relay.settled", events.At(*row.PublishedAt), row.EventID, row.EventType + ", confirmed by the broker"})
	case row.FailedAt != nil:
		steps = append(steps, TimelineStep{"relay.failed", events.At(*row.FailedAt), row.EventID, row.LastError})
	case row.LockedUntil != nil:
		// The row keeps the end of the lease, so this is the claim or its last renewal.
		steps = append(steps, TimelineStep{"relay.claimed", events.At(row.LockedUntil.Add(-lease)), row.EventID, "by " + row.LockedBy})
	case row.Attempts > 0:
		steps = append(steps, TimelineStep{
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
