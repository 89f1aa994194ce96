package order

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// eventState is where an event of an order stands on its way to the broker.
type eventState struct {
	EventID     string       `json:"eventId"`
	EventType   string       `json:"eventType"`
	Sequence    int64        `json:"sequence"`
	Status      string       `json:"status"` // Pending, Processing, Published, Failed
	Attempts    int          `json:"attempts"`
	LastError   string       `json:"lastError,omitempty"`
	StoredAt    events.Time  `json:"storedAt"`
	PublishedAt *events.Time `json:"publishedAt,omitempty"`
}

// getOrder is GET /orders/{orderId}: the order, and how far its events have come.
// Published events are pruned some day and then missing here.
func (s *service) getOrder(w http.ResponseWriter, r *http.Request) error {
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
	answer := struct {
		Order
		Events []eventState `json:"events"`
	}{o, make([]eventState, len(rows))}
	for i, row := range rows {
		e := eventState{
			EventID: row.EventID, EventType: row.EventType, Sequence: row.Sequence, Status: row.Status,
			Attempts: row.Attempts, LastError: row.LastError, StoredAt: events.At(row.CreatedAt),
		}
		if row.PublishedAt != nil {
			at := events.At(*row.PublishedAt)
			e.PublishedAt = &at
		}
		answer.Events[i] = e
	}
	reply(w, http.StatusOK, "application/json", answer)
	return nil
}

const findOrderSQL = `select ` + orderColumns + ` from orders where order_id = $1`

func (s *service) find(ctx context.Context, id string) (Order, error) {
	o, err := findOrder(ctx, s.db, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return o, noSuchOrder(id)
	}
	return o, err
}

func findOrder(ctx context.Context, db outbox.DB, id string) (Order, error) {
	var o Order
	if err := db.QueryRow(ctx, findOrderSQL, id).Scan(o.columns()...); err != nil {
		return o, fmt.Errorf("find order %s: %w", id, err)
	}
	return o, nil
}
