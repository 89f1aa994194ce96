package inventory

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// TimelineStep is something that happened to an order, as its rows have it.
type TimelineStep struct {
	Step    string      `json:"step"`
	At      events.Time `json:"at"`
	EventID string      `json:"eventId"`
	Detail  string      `json:"detail,omitempty"`
}

// getTimeline is GET /timeline/{orderId}: what this service knows of an order's
// way, by time.
func (s *service) getTimeline(w http.ResponseWriter, r *http.Request) error {
	id, err := pathName(r, "orderId")
	if err != nil {
		return err
	}
	eventID, steps, err := Timeline(r.Context(), s.db, id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errNotFound
	case err != nil:
		return err
	}
	reply(w, http.StatusOK, struct {
		OrderID string         `json:"orderId"`
		EventID string         `json:"eventId"`
		Steps   []TimelineStep `json:"steps"`
	}{id, eventID, steps})
	return nil
}

// Timeline is what inventory's rows say of an order's way, by time, and the event
// by which inventory heard of it. Being read from rows alone, it survives any
// crash. If inventory has not heard of the order the error wraps [pgx.ErrNoRows].
func Timeline(ctx context.Context, db DB, orderID string) (eventID string, steps []TimelineStep, err error) {
	res, err := findReservation(ctx, db, orderID)
	if err != nil {
		return "", nil, err
	}
	heard, err := recorded(ctx, db, res.EventID, res.CancelEventID)
	if err != nil {
		return "", nil, err
	}
	answers, err := outbox.OfAggregate(ctx, db, orderID)
	if err != nil {
		return "", nil, err
	}
	steps = slices.Concat(heard, res.steps())
	for _, row := range answers {
		steps = append(steps, answerSteps(row)...)
	}
	// What one transaction did has one time and stays in the order of its doing.
	slices.SortStableFunc(steps, func(a, b TimelineStep) int { return a.At.Compare(b.At.Time) })
	return res.EventID, steps, nil
}

// DB is a pool or a connection of pgx.
type DB interface {
	outbox.DB
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

const recordedSQL = `
select event_id, received_at from inbox_messages
where consumer_name = $1 and event_id = any ($2) order by received_at`

// recorded are the events of an order that the inbox still remembers.
func recorded(ctx context.Context, db DB, eventIDs ...string) ([]TimelineStep, error) {
	rows, err := db.Query(ctx, recordedSQL, consumerName, eventIDs)
	if err != nil {
		return nil, fmt.Errorf("read inbox: %w", err)
	}
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (TimelineStep, error) {
		st := TimelineStep{Step: "inbox.recorded", Detail: "in one transaction with what follows"}
		err := row.Scan(&st.EventID, &st.At.Time)
		return st, err
	})
	if err != nil {
		return nil, fmt.Errorf("read inbox: %w", err)
	}
	return steps, nil
}

// steps are what was decided about the order.
func (r reservation) steps() []TimelineStep {
	items := make([]string, len(r.Items))
	for i, it := range r.Items {
		items[i] = fmt.Sprintf("%s × %d", it.SKU, it.Quantity)
	}
	held := strings.Join(items, ", ")
	switch r.State {
	case Reserved:
		return []TimelineStep{{"inventory.reserved", r.CreatedAt, r.EventID, held}}
	case Released:
		return []TimelineStep{
			{"inventory.reserved", r.CreatedAt, r.EventID, held},
			{"inventory.released", r.UpdatedAt, r.CancelEventID, held},
		}
	case Rejected:
		return []TimelineStep{{"inventory.rejected", r.CreatedAt, r.EventID, r.Reason}}
	}
	return []TimelineStep{{"inventory.cancelled-first", r.CreatedAt, r.EventID, "the order will not be reserved"}}
}

// answerSteps are what a row of the outbox still shows.
func answerSteps(row outbox.Row) []TimelineStep {
	step := func(name string, at time.Time, detail string) TimelineStep {
		return TimelineStep{name, events.At(at), row.EventID, detail}
	}
	steps := []TimelineStep{step("answer.stored", row.CreatedAt, row.EventType)}
	switch {
	case row.PublishedAt != nil:
		steps = append(steps, step("answer.published", *row.PublishedAt, row.EventType+", confirmed by the broker"))
	case row.FailedAt != nil:
		steps = append(steps, step("answer.failed", *row.FailedAt, row.LastError))
	}
	return steps
}
