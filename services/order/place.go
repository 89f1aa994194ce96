package order

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/baton/shared/outbox"
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

// place stores an order and its event in one transaction and one round trip, and
// has the event sent.
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
	first := mine // unless the key turns out to be another one's

	b := &pgx.Batch{}
	onlyIf := "true"
	if key != "" {
		b.Queue(claimKeySQL, key, mine.hash, mine.orderID, string(mine.answer))
		onlyIf = orderIsStored
	}
	b.Queue(insertOrderSQL, o.OrderID, o.EventID, o.CustomerID, string(o.Amount), o.Currency, string(encode(o.Items)), o.CreatedAt.Time, key)
	if err := outbox.QueueIf(b, onlyIf, event); err != nil {
		return placed{}, err
	}
	if key != "" {
		b.Queue(firstAnswerSQL, key).QueryRow(func(row pgx.Row) error {
			return row.Scan(&first.orderID, &first.hash, &first.answer)
		})
	}
	switch err := s.commit(ctx, b); {
	case errors.Is(err, pgx.ErrNoRows):
		// The key was another one's when we tried to take it, and was pruned before
		// we could read it. Nothing is stored: the next try takes the key.
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

// The batch is one transaction but several statements, each of which sees what
// was committed before it. So a request that loses the race for its key waits
// here until the winner has committed, and then reads the winner's answer in the
// same round trip. In a single statement with several parts it would see neither
// its own row nor the winner's.
const claimKeySQL = `
insert into idempotency_keys (key, request_hash, order_id, answer)
values ($1, $2, $3, $4::text)
on conflict (key) do nothing`

// The order is stored unless another one has the key.
const insertOrderSQL = `
insert into orders (order_id, event_id, customer_id, amount, currency, items, created_at, updated_at)
select $1, $2, $3, $4::text::numeric, $5, $6::jsonb, $7, $7
where $8::text = '' or exists (select 1 from idempotency_keys k where k.key = $8::text and k.order_id = $1)`

// The event is stored if its order was. The id of an order is used once, so the
// row can only be that of this transaction.
const orderIsStored = `exists (select 1 from orders where orders.order_id = m.aggregate_id)`

const firstAnswerSQL = `select order_id, request_hash, answer from idempotency_keys where key = $1`

// commit sends b, which is a transaction of its own: without a BEGIN in it the
// server commits it as a whole when it has run all of it, and [pgx.BatchResults]
// is not closed before that is known.
func (s *service) commit(ctx context.Context, b *pgx.Batch) error {
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	return outcome(conn.SendBatch(ctx, b).Close())
}

// outcome tells errors after which nothing was changed from those that may have
// hidden a commit.
func outcome(err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, pgx.ErrNoRows):
		return err
	case errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR": // rolled back; a FATAL may come after the commit
		return err
	case errors.As(err, new(pgx.ErrPreprocessingBatch)), pgconn.SafeToRetry(err): // not sent
		return err
	}
	return fmt.Errorf("%w: %w", errOutcomeUnknown, err)
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
