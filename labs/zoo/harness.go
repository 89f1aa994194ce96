package zoo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/shared/events"
	"example.com/baton/shared/inbox"
	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// This file is what is not the mistake: what is here is right, as far as it
// goes. It does one message at a time and knows nothing of cancelling.

func die() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {} // until the signal is delivered
}

// again calls once, again and again, until ctx is done or it fails.
func again(ctx context.Context, once func() error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := once(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// order is an order that is not stored yet, and its event.
type order struct {
	id    string
	event events.Event
}

const numberSQL = `select nextval('order_numbers'), now()`

func (s *stage) newOrder(ctx context.Context) (order, error) {
	var number int64
	var now time.Time
	if err := s.db.QueryRow(ctx, numberSQL).Scan(&number, &now); err != nil {
		return order{}, fmt.Errorf("take an order number: %w", err)
	}
	id := fmt.Sprintf("ORD-%s-%06d", now.UTC().Format("20060102"), number)
	return order{id, events.Event{
		EventID: events.NewID(now), EventType: events.OrderCreated, OccurredAt: events.At(now), OrderID: id, Sequence: 1,
		CustomerID: "C10086", Amount: "199.00", Currency: "CNY",
		Items: []events.Item{{SKU: "SKU-1", Quantity: 2}, {SKU: "SKU-2", Quantity: 1}},
	}}, nil
}

// placeOrders places as many orders as were asked for, each by place.
func (s *stage) placeOrders(ctx context.Context, place func(ctx context.Context, o order) error) error {
	for range s.orders {
		o, err := s.newOrder(ctx)
		if err != nil {
			return err
		}
		if err := place(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

const insertOrderSQL = `
insert into orders (order_id, event_id, customer_id, amount, currency, items, created_at, updated_at)
values ($1, $2, $3, $4::text::numeric, $5, $6, $7, $7)`

func insertOrder(ctx context.Context, tx pgx.Tx, o order) error {
	e := o.event
	_, err := tx.Exec(ctx, insertOrderSQL, o.id, e.EventID, e.CustomerID, string(e.Amount), e.Currency, e.Items, e.OccurredAt.Time)
	return err
}

// message is the event as the outbox has it.
func message(e events.Event) (outbox.Message, error) {
	payload, err := events.Encode(e)
	return outbox.Message{
		ID: e.EventID, Type: e.EventType, AggregateID: e.OrderID, Sequence: e.Sequence,
		OccurredAt: e.OccurredAt.Time, Payload: payload,
	}, err
}

const alreadySentSQL = `update outbox_messages set status = 'Published', published_at = now() where event_id = $1`

// recordSent stores a message that no relay is to send.
func recordSent(ctx context.Context, tx pgx.Tx, m outbox.Message) error {
	if err := outbox.Enqueue(ctx, tx, m); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, alreadySentSQL, m.ID)
	return err
}

// relay runs the product's relay with a publisher that sends one message after
// the other. send returns nil when the broker has taken responsibility, else one
// of the errors of package outbox.
func (s *stage) relay(ctx context.Context, send func(ctx context.Context, m outbox.Message) error) error {
	r := &outbox.Relay{DB: s.db, Publisher: oneByOne(send), Instance: "zoo", Poll: 100 * time.Millisecond, Logger: s.log}
	return r.Run(ctx)
}

type oneByOne func(ctx context.Context, m outbox.Message) error

func (send oneByOne) Ready(ctx context.Context) error { return ctx.Err() }

func (send oneByOne) Publish(ctx context.Context, msgs []outbox.Message, settle func(i int, err error)) {
	for i, m := range msgs {
		settle(i, send(ctx, m))
	}
}

// publish writes a message to the socket, persistent and mandatory. What becomes
// of it is in the confirmation, and in the returns.
func (s *stage) publish(ctx context.Context, m outbox.Message) (*amqp.DeferredConfirmation, error) {
	confirm, err := s.ch.PublishWithDeferredConfirmWithContext(ctx, events.OrderExchange, m.Type, true, false, amqp.Publishing{
		MessageId: m.ID, Type: m.Type, Timestamp: m.OccurredAt, ContentType: "application/json",
		DeliveryMode: amqp.Persistent, AppId: "order", Body: m.Payload,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", outbox.ErrUnknown, err) // some of it may have left
	}
	return confirm, nil
}

// returned reports whether a message came back, once its confirm is here.
func (s *stage) returned(id string) bool {
	came := false
	for {
		select {
		case r := <-s.returns:
			came = came || r.MessageId == id
		default:
			return came
		}
	}
}

// send publishes a message and looks at everything the broker says of it.
func (s *stage) send(ctx context.Context, m outbox.Message) error {
	confirm, err := s.publish(ctx, m)
	if err != nil {
		return err
	}
	acked, err := confirm.WaitContext(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", outbox.ErrUnknown, err)
	case s.returned(m.ID):
		return outbox.ErrUnroutable
	case !acked && s.ch.IsClosed():
		return outbox.ErrUnknown
	case !acked:
		return outbox.ErrRefused
	}
	return nil
}

// collect reads rows of event_id, event_type, occurred_at, payload.
func collect(rows pgx.Rows, err error) ([]outbox.Message, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m outbox.Message, err error) {
		return m, row.Scan(&m.ID, &m.Type, &m.OccurredAt, &m.Payload)
	})
}

// queueName is inventory's queue, and the name of its inbox.
const queueName = "inventory.order-events"

func (s *stage) queue() rabbit.Queue {
	return rabbit.Queue{
		Name: queueName, Owner: "inventory", Source: events.OrderExchange,
		Keys: []string{events.OrderCreated, events.OrderCancelled}, RetryTTL: s.retryTTL,
	}
}

// consume runs the product's consumer, one message at a time.
func (s *stage) consume(ctx context.Context, handle func(ctx context.Context, e events.Event) error) error {
	c := &rabbit.Consumer{
		URL: s.amqpURL, Queue: s.queue(), Prefetch: 1, Batch: 1, Logger: s.log,
		Handle: func(ctx context.Context, batch []rabbit.Delivery) []error {
			e, err := events.Decode(batch[0].Body)
			if err != nil {
				return []error{rabbit.Permanent(err)}
			}
			return []error{handle(ctx, e)}
		},
	}
	return c.Run(ctx)
}

// deliveries consumes without the product's consumer, one message at a time.
func (s *stage) deliveries(ctx context.Context) (<-chan amqp.Delivery, error) {
	if err := s.ch.Qos(1, 0, false); err != nil {
		return nil, err
	}
	return s.ch.ConsumeWithContext(ctx, queueName, "", false, false, false, false, nil)
}

// handle reserves for an event, once however often it comes.
func (s *stage) handle(ctx context.Context, body []byte) error {
	e, err := events.Decode(body)
	if err != nil {
		return err
	}
	return inbox.Handle(ctx, s.db, queueName, []string{e.EventID}, func(tx pgx.Tx, _ []string) error {
		return s.reserve(ctx, tx, e)
	})
}

const decideSQL = `
insert into inventory_orders (order_id, state, event_id) values ($1, 'reserved', $2)
on conflict (order_id) do nothing`

const takeStockSQL = `
update stock set reserved = reserved + $2 where sku = $1 and on_hand - reserved >= $2`

const reserveSQL = `
insert into inventory_reservations (order_id, sku, quantity, status, event_id) values ($1, $2, $3, 'reserved', $4)`

// reserve reserves for an order whose stock is there, and enqueues the answer.
func (s *stage) reserve(ctx context.Context, tx pgx.Tx, e events.Event) error {
	decided, err := tx.Exec(ctx, decideSQL, e.OrderID, e.EventID)
	if err != nil {
		return err
	}
	if decided.RowsAffected() == 0 {
		return nil // by another event of the order
	}
	wanted := bySKU(e.Items)
	for _, sku := range slices.Sorted(maps.Keys(wanted)) {
		taken, err := tx.Exec(ctx, takeStockSQL, sku, wanted[sku])
		if err != nil {
			return err
		}
		if taken.RowsAffected() == 0 {
			return errors.New("out of stock: " + sku)
		}
		if _, err := tx.Exec(ctx, reserveSQL, e.OrderID, sku, wanted[sku], e.EventID); err != nil {
			return err
		}
	}
	m, err := answer(ctx, tx, e)
	if err != nil {
		return err
	}
	if err := outbox.Enqueue(ctx, tx, m); err != nil {
		return err
	}
	return s.at(ctx, "reserved", e.EventID)
}

func bySKU(items []events.Item) map[string]int64 {
	sum := make(map[string]int64)
	for _, it := range items {
		sum[it.SKU] += it.Quantity
	}
	return sum
}

func answer(ctx context.Context, tx pgx.Tx, e events.Event) (outbox.Message, error) {
	var now time.Time
	if err := tx.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return outbox.Message{}, err
	}
	return message(events.Event{
		EventID: events.NewID(now), EventType: events.InventoryReserved, OccurredAt: events.At(now),
		OrderID: e.OrderID, Sequence: 1,
	})
}

// failures is how often the broker says that a delivery has failed.
func failures(d amqp.Delivery) (n int64) {
	deaths, _ := d.Headers["x-death"].([]any)
	for _, death := range deaths {
		if t, ok := death.(amqp.Table); ok && t["queue"] == queueName && t["reason"] == "rejected" {
			n, _ = t["count"].(int64)
		}
	}
	return n
}
