package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"example.com/baton/internal/samples"
	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// The floors: what broker and database do for a client that does nothing else.
// They are the plainest code that gives the same guarantee.

// rawWindow is how many messages the raw publisher has unconfirmed at most.
const rawWindow = 1000

// rawPublish sends messages persistent and mandatory on one channel, the same
// bytes as the relay, and returns how many a second were confirmed.
func rawPublish(ctx context.Context, amqpURL string, msgs []outbox.Message) (perSecond float64, err error) {
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	if err := ch.Confirm(false); err != nil {
		return 0, err
	}
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, rawWindow))
	returns := ch.NotifyReturn(make(chan amqp.Return, rawWindow))
	window := make(chan struct{}, rawWindow)
	var g errgroup.Group
	begin := time.Now()
	g.Go(func() error {
		for range msgs {
			if c, open := <-confirms; !open || !c.Ack {
				return errors.New("raw publish: a message was not confirmed")
			}
			<-window
		}
		return nil
	})
	for _, m := range msgs {
		select {
		case window <- struct{}{}:
		case <-time.After(stuck):
			conn.Close() // ends the goroutine above
			return 0, errors.Join(errors.New("raw publish: nothing is confirmed"), g.Wait())
		}
		headers := make(amqp.Table, len(m.Headers))
		for k, v := range m.Headers {
			headers[k] = v
		}
		err := ch.PublishWithContext(ctx, events.OrderExchange, m.Type, true, false, amqp.Publishing{
			MessageId: m.ID, Type: m.Type, Timestamp: m.OccurredAt, ContentType: "application/json",
			DeliveryMode: amqp.Persistent, AppId: "order", CorrelationId: m.AggregateID, Headers: headers, Body: m.Payload,
		})
		if err != nil {
			conn.Close()
			return 0, errors.Join(err, g.Wait())
		}
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	perSecond = float64(len(msgs)) / time.Since(begin).Seconds()
	select {
	case r, open := <-returns:
		if open {
			return 0, fmt.Errorf("raw publish: %s was returned: %s", r.MessageId, r.ReplyText)
		}
	default:
	}
	return perSecond, nil
}

// rawPrefetch is that of the consumer; each half of it is acknowledged at once.
const rawPrefetch = 500

// rawConsume takes n messages off a queue and returns how many a second.
func rawConsume(ctx context.Context, amqpURL, queue string, n int) (perSecond float64, err error) {
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	if err := ch.Qos(rawPrefetch, 0, false); err != nil {
		return 0, err
	}
	begin := time.Now()
	deliveries, err := ch.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
	if err != nil {
		return 0, err
	}
	for i := 1; i <= n; i++ {
		d, open := <-deliveries
		if !open {
			return 0, errors.Join(errors.New("raw consume: the deliveries ended"), ctx.Err())
		}
		if i%(rawPrefetch/2) == 0 || i == n {
			if err := d.Ack(true); err != nil {
				return 0, err
			}
		}
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}

// An order and its event in one statement: one round trip, one transaction.
const rawInsertSQL = `
with placed as (
  insert into orders (order_id, event_id, customer_id, amount, currency, items, created_at, updated_at)
  values ($1, $2, 'C10086', 199.00, 'CNY', $3::text::jsonb, now(), now()))
insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at)
values ($2, $1, 1, 'order.created', $4::text::jsonb, now())`

// rawInsert stores orders with their events on so many connections for a time,
// and returns how many a second. Nobody may be relaying meanwhile.
func rawInsert(ctx context.Context, db *pgxpool.Pool, connections int, lasting time.Duration) (perSecond float64, err error) {
	payload := string(samples.Events(1, "raw")[0].Payload)
	const items = `[{"sku": "SKU-1", "quantity": 2}]`
	var conns []*pgxpool.Conn
	for range connections {
		conn, err := db.Acquire(ctx)
		if err != nil {
			return 0, err
		}
		defer conn.Release()
		conns = append(conns, conn)
	}
	var mu sync.Mutex
	total := 0
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for c, conn := range conns {
		g.Go(func() error {
			n := 0
			for ; time.Since(begin) < lasting; n++ {
				id := fmt.Sprintf("raw-%d-%d-%d", begin.UnixNano(), c, n)
				if _, err := conn.Exec(ctx, rawInsertSQL, id, id, items, payload); err != nil {
					return err
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, fmt.Errorf("raw insert: %w", err)
	}
	return float64(total) / time.Since(begin).Seconds(), nil
}
