package order

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// postCancel is POST /orders/{orderId}/cancel.
func (s *service) postCancel(w http.ResponseWriter, r *http.Request) error {
	if err := noBody(r); err != nil {
		return err
	}
	id, err := orderID(chi.URLParam(r, "orderId"))
	if err != nil {
		return err
	}
	o, err := s.cancel(r.Context(), id, traceparent(r.Header))
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, "application/json", o)
	return nil
}

const lockOrderSQL = `
select ` + orderColumns + `, last_sequence + 1, clock_timestamp() from orders where order_id = $1 for update`

const cancelOrderSQL = `
update orders set status = 'cancelled', last_sequence = $2, updated_at = $3 where order_id = $1`

// cancel cancels an order unless inventory has rejected it. Cancelling twice
// gives the same order and no second event: whoever comes second waits for the
// row and finds it cancelled.
func (s *service) cancel(ctx context.Context, id, trace string) (Order, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()

	var o Order
	var eventID string
	committing := false
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) (err error) {
		o, eventID, err = cancelIn(ctx, tx, id, trace)
		committing = err == nil
		return err
	})
	switch {
	case committing && err != nil:
		return o, outcome(fmt.Errorf("cancel order %s: %w", id, err))
	case err != nil || eventID == "":
		return o, err
	}
	return o, s.committed(ctx, eventID)
}

// cancelIn does so in tx and returns the order as it is now, with the id of the
// event if there is one.
func cancelIn(ctx context.Context, tx pgx.Tx, id, trace string) (o Order, eventID string, err error) {
	var sequence int64
	var now time.Time
	err = tx.QueryRow(ctx, lockOrderSQL, id).Scan(append(o.columns(), &sequence, &now)...)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return o, "", noSuchOrder(id)
	case err != nil:
		return o, "", fmt.Errorf("lock order %s: %w", id, err)
	}
	switch o.Status {
	case statusCancelled:
		return o, "", nil
	case statusRejected:
		return o, "", &problem{
			Type: typeNotCancellable, Title: "Order not cancellable", Status: http.StatusConflict,
			Detail: "inventory has rejected the order: " + o.Reason,
		}
	}
	o.Status, o.UpdatedAt = statusCancelled, events.At(now)
	msg, err := message(events.Event{
		EventID:    events.NewID(now),
		EventType:  events.OrderCancelled,
		OccurredAt: o.UpdatedAt,
		OrderID:    id,
		Sequence:   sequence,
	}, trace)
	if err != nil {
		return o, "", err
	}
	if _, err := tx.Exec(ctx, cancelOrderSQL, id, sequence, o.UpdatedAt.Time); err != nil {
		return o, "", fmt.Errorf("update order %s: %w", id, err)
	}
	return o, msg.ID, outbox.Enqueue(ctx, tx, msg)
}
