package inventory

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// timelineStep is something that happened to an order, as its rows have it.
type timelineStep struct {
	Step    string      `json:"step"`
	At      events.Time `json:"at"`
	EventID string      `json:"eventId"`
	Detail  string      `json:"detail,omitempty"`
}

// getTimeline is GET /timeline/{orderId}: what this service knows of an order's
// way, by time. It is read from rows alone, so it survives any crash.
func (s *service) getTimeline(w http.ResponseWriter, r *http.Request) error {
	id, err := pathName(r, "orderId")
	if err != nil {
		return err
	}
	res, err := s.findReservation(r.Context(), id)
	if err != nil {
		return err
	}
	recorded, err := s.recorded(r.Context(), res.EventID, res.CancelEventID)
	if err != nil {
		return err
	}
	answers, err := outbox.OfAggregate(r.Context(), s.db, id)
	if err != nil {
		return err
	}
	steps := slices.Concat(recorded, res.steps())
	for _, row := range answers {
		steps = append(steps, answerSteps(row)...)
	}
	// What one transaction did has one time and stays in the order of its doing.
	slices.SortStableFunc(steps, func(a, b timelineStep) int { return a.At.Compare(b.At.Time) })
	reply(w, http.StatusOK, struct {
		OrderID string         `json:"orderId"`
		EventID string         `json:"eventId"`
		Steps   []timelineStep `json:"steps"`
	}{id, res.EventID, steps})
	return nil
}

const recordedSQL = `
select event_id, received_at from inbox_messages
where consumer_name = $1 and event_id = any ($2) order by received_at`

// recorded are the events of an order that the inbox still remembers.
func (s *service) recorded(ctx context.Context, eventIDs ...string) ([]timelineStep, error) {
	rows, err := s.db.Query(ctx, recordedSQL, consumerName, eventIDs)
	if err != nil {
		return nil, fmt.Errorf("read inbox: %w", err)
	}
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (timelineStep, error) {
		st := timelineStep{Step: "inbox.recorded", Detail: "in one transaction with what follows"}
		err := row.Scan(&st.EventID, &st.At.Time)
		return st, err
	})
	if err != nil {
		return nil, fmt.Errorf("read inbox: %w", err)
	}
	return steps, nil
}

// steps are what was decided about the order.
func (r reservation) steps() []timelineStep {
	items := make([]string, len(r.Items))
	for i, it := range r.Items {
		items[i] = fmt.Sprintf("%s × %d", it.SKU, it.Quantity)
	}
	held := strings.Join(items, ", ")
	switch r.State {
	case Reserved:
		return []timelineStep{{"inventory.reserved", r.CreatedAt, r.EventID, held}}
	case Released:
		return []timelineStep{
			{"inventory.reserved", r.CreatedAt, r.EventID, held},
			{"inventory.released", r.UpdatedAt, r.CancelEventID, held},
		}
	case Rejected:
		return []timelineStep{{"inventory.rejected", r.CreatedAt, r.EventID, r.Reason}}
	}
	return []timelineStep{{"inventory.cancelled-first", r.CreatedAt, r.EventID, "the order will not be reserved"}}
}

// answerSteps are what a row of the outbox still shows.
func answerSteps(row outbox.Row) []timelineStep {
	step := func(name string, at time.Time, detail string) timelineStep {
		return timelineStep{name, events.At(at), row.EventID, detail}
	}
	steps := []timelineStep{step("answer.stored", row.CreatedAt, row.EventType)}
	switch {
	case row.PublishedAt != nil:
		steps = append(steps, step("answer.published", *row.PublishedAt, row.EventType+", confirmed by the broker"))
	case row.FailedAt != nil:
		steps = append(steps, step("answer.failed", *row.FailedAt, row.LastError))
	}
	return steps
}
