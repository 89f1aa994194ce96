package order

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
)

// StepCommitted is the first step of an event: it is committed together with
// what it tells of. The outbox and the consumer name the steps that follow.
const StepCommitted = "order.committed"

// postOrder is POST /orders.
func (s *service) postOrder(w http.ResponseWriter, r *http.Request) error {
	key, err := idempotencyKey(r.Header)
	if err != nil {
		return err
	}
	n, err := readNewOrder(w, r)
	if err != nil {
		return err
	}
	first, err := s.place(r.Context(), n, key, traceparent(r.Header))
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/orders/"+first.orderID)
	send(w, http.StatusCreated, "application/json", first.answer)
	return nil
}

// placed is an order that was asked for, and the answer to whoever asked.
type placed struct {
	orderID string
	hash    []byte // of the request
	answer  []byte // body of the 201
}

// place stores an order and its event in one transaction and one round trip, with
// others that are placed at that moment, and has the event sent.
//
// With a key it stores one order for all requests that carry the key and the
// same content, and returns that first order to each of them.
func (s *service) place(ctx context.Context, n newOrder, key, trace string) (placed, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()

	number, now, err := s.numbers.take(ctx)
	if err != nil {
		return placed{}, err
	}
	o := n.order(number, now)
	event, err := message(o.created(), trace)
	if err != nil {
		return placed{}, err
	}
	mine := placed{o.OrderID, n.hash(), encode(o)}
	switch first, err := s.together.place(ctx, &placing{order: o, key: key, mine: mine, event: event}); {
	case errors.Is(err, errKeyExpired):
		// Nothing is stored for it: the next try takes the key.
		return placed{}, outage("the Idempotency-Key has just expired; sending the request again makes a new order")
	case err != nil:
		return placed{}, fmt.Errorf("store order %s: %w", o.OrderID, err)
	case !bytes.Equal(first.hash, mine.hash):
		return placed{}, &problem{
			Type: typeKeyReused, Title: "Idempotency-Key reused", Status: http.StatusUnprocessableEntity,
			Detail: "this key belongs to order " + first.orderID + ", which was asked for differently",
		}
	case first.orderID != mine.orderID:
		return first, nil // whoever placed it has its event sent
	}
	return mine, s.committed(ctx, event.ID)
}

// committed is called once an event is in the database.
func (s *service) committed(ctx context.Context, eventID string) error {
	if s.observe != nil {
		// Without the end of the request: the step takes what it takes. And without
		// %w: whatever the error is, it no longer means that nothing was changed.
		if err := s.observe(context.WithoutCancel(ctx), StepCommitted, []string{eventID}); err != nil {
			return fmt.Errorf("event %s is committed, and then: %v", eventID, err)
		}
	}
	s.relay.Wake()
	return nil
}
