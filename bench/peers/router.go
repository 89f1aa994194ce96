package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/samples"
	"example.com/baton/migrations/inventory"
	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// The router with the subscriber as the library configures it.
var routerDefault = setup{
	modules:   routerModules,
	guarantee: routerGuarantee,
	settings:  "1 handler, prefetch 1 (the default); a transaction of 4 round trips per message",
	open:      openRouter(1, 1),
}

// A subscription hands out the next message after the acknowledgement of the
// last, so what goes on at once is one message a handler. Each has a connection
// to the database.
var routerTuned = setup{
	modules:     routerModules,
	guarantee:   routerGuarantee,
	settings:    "16 handlers, prefetch 20, 16 database connections; a transaction of 4 round trips per message",
	connections: 16,
	open:        openRouter(16, 20),
}

var routerModules = []string{"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-amqp/v3", "github.com/jackc/pgx/v5"}

const routerGuarantee = "handled once in effect: inbox row, stock, order, reservations and answer are one transaction, acknowledged after its commit; " +
	"a message that fails is requeued at once, without a limit"

func openRouter(handlers, prefetch int) func(context.Context, *bed) (worker, error) {
	return func(ctx context.Context, b *bed) (worker, error) {
		if _, err := provision.Migrate(ctx, b.address.database, inventory.FS); err != nil {
			return nil, err
		}
		const stock = `insert into stock (sku, on_hand) select 'SKU-B' || n, 1000000000 from generate_series(0, $1::int - 1) n`
		if _, err := b.db.Exec(ctx, stock, samples.SKUs); err != nil {
			return nil, fmt.Errorf("stock: %w", err)
		}
		config := watermillAMQP(b)
		config.Consume.Qos.PrefetchCount = prefetch
		return &routerWorker{bed: b, handlers: handlers, config: config}, nil
	}
}

type routerWorker struct {
	*bed
	handlers int
	config   wamqp.Config
	filled   int
	gate     gate
}

func (w *routerWorker) fill(ctx context.Context, msgs []outbox.Message) error {
	const window = 1000
	p, err := newPublisher(w.address.amqp, window)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(window)
	for _, m := range msgs {
		g.Go(func() error { return p.publish(ctx, m) })
	}
	w.filled = len(msgs)
	return errors.Join(g.Wait(), p.close())
}

func (w *routerWorker) run(ctx context.Context) error {
	logger := watermillLogger(w.bed)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	subscriber, err := wamqp.NewSubscriber(w.config, logger)
	if err != nil {
		return err
	}
	for n := range w.handlers {
		router.AddConsumerHandler(fmt.Sprintf("inventory-%d", n), routingKey, subscriber, w.handle)
	}
	return errors.Join(runUntil(ctx, w.bed, &w.gate, router), subscriber.Close())
}

func (w *routerWorker) handle(msg *message.Message) error {
	if err := w.gate.enter(); err != nil {
		return err
	}
	defer w.gate.leave()
	// The library cancels a message's context when it closes, and then nobody
	// knows whether a commit under way came through.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(msg.Context()), time.Minute)
	defer cancel()
	e, err := events.Decode(msg.Payload)
	if err != nil {
		w.meter.fail(err)
		return err
	}
	isNew := false
	err = pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) (err error) {
		isNew, err = reserve(ctx, tx, e, msg.Metadata.Get("traceparent"))
		return err
	})
	if err != nil {
		w.meter.fail(err)
		return err
	}
	if isNew {
		w.meter.add()
	}
	return nil
}

// What follows is what Baton's consumer does with a batch, for one order.created
// at a time, in two round trips.

const recordSQL = `
insert into inbox_messages (consumer_name, event_id) values ('inventory.order-events', $1) on conflict do nothing`

const insertOrderSQL = `
insert into inventory_orders (order_id, state, event_id) values ($1, 'reserved', $2) on conflict (order_id) do nothing`

const lockStockSQL = `
select sku, on_hand - reserved from stock where sku = any ($1) order by sku for update`

const rejectOrderSQL = `
update inventory_orders set state = 'rejected', reason = $2, updated_at = now() where order_id = $1`

const insertLinesSQL = `
insert into inventory_reservations (order_id, sku, quantity, status, event_id)
select $1, n.sku, n.quantity, 'reserved', $2 from unnest($3::text[], $4::bigint[]) as n (sku, quantity)`

const updateStockSQL = `
update stock s set reserved = s.reserved + n.quantity
from unnest($1::text[], $2::bigint[]) as n (sku, quantity) where s.sku = n.sku`

// reserve says whether the event and its order were new; if not, it did nothing
// but record the event.
func reserve(ctx context.Context, tx pgx.Tx, e events.Event, trace string) (isNew bool, err error) {
	wanted := make(map[string]int64, len(e.Items))
	for _, it := range e.Items {
		wanted[it.SKU] += it.Quantity
	}
	skus := slices.Sorted(maps.Keys(wanted))
	quantities := make([]int64, len(skus))
	for i, sku := range skus {
		quantities[i] = wanted[sku]
	}

	var locks pgx.Batch
	var now time.Time
	var recorded, inserted int64
	available := make(map[string]int64, len(skus))
	locks.Queue(`select now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	locks.Queue(recordSQL, e.EventID).Exec(rowsInto(&recorded))
	locks.Queue(insertOrderSQL, e.OrderID, e.EventID).Exec(rowsInto(&inserted))
	locks.Queue(lockStockSQL, skus).Query(func(rows pgx.Rows) error {
		var sku string
		var free int64
		_, err := pgx.ForEachRow(rows, []any{&sku, &free}, func() error { available[sku] = free; return nil })
		return err
	})
	if err := tx.SendBatch(ctx, &locks).Close(); err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	if recorded == 0 || inserted == 0 {
		return false, nil
	}

	answer := events.Event{
		EventID: events.NewID(now), EventType: events.InventoryReserved, OccurredAt: events.At(now),
		OrderID: e.OrderID, Sequence: 1,
	}
	for i, sku := range skus {
		switch free, known := available[sku]; {
		case !known:
			answer.Reason = "unknown sku: " + sku
		case free < quantities[i]:
			answer.Reason = "out of stock: " + sku
		}
	}
	var writes pgx.Batch
	if answer.Reason == "" {
		writes.Queue(insertLinesSQL, e.OrderID, e.EventID, skus, quantities)
		writes.Queue(updateStockSQL, skus, quantities)
	} else {
		answer.EventType = events.InventoryRejected
		writes.Queue(rejectOrderSQL, e.OrderID, answer.Reason)
	}
	payload, err := events.Encode(answer)
	if err != nil {
		return false, err
	}
	m := outbox.Message{ID: answer.EventID, Type: answer.EventType, AggregateID: e.OrderID, Sequence: 1, OccurredAt: now, Payload: payload}
	if trace != "" {
		m.Headers = map[string]string{"traceparent": trace}
	}
	if err := outbox.Queue(&writes, m); err != nil {
		return false, err
	}
	if err := tx.SendBatch(ctx, &writes).Close(); err != nil {
		return false, fmt.Errorf("write: %w", err)
	}
	return true, nil
}

func rowsInto(n *int64) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error { *n = tag.RowsAffected(); return nil }
}

const countSQL = `
select (select count(*) from inventory_reservations where status = 'reserved'),
       (select count(*) from inventory_orders where state = 'reserved'),
       (select count(*) from inbox_messages),
       (select count(*) from outbox_messages where event_type = 'inventory.reserved'),
       (select sum(quantity) from inventory_reservations) = (select sum(reserved) from stock)`

func (w *routerWorker) verify(ctx context.Context, handled int) error {
	var got [4]int // each sample is for one sku, so it has one row everywhere
	var even bool
	if err := w.db.QueryRow(ctx, countSQL).Scan(&got[0], &got[1], &got[2], &got[3], &even); err != nil {
		return fmt.Errorf("count: %w", err)
	}
	if got != [4]int{handled, handled, handled, handled} {
		return fmt.Errorf("%d handled, but there are %d reservations, %d orders, %d inbox rows, %d answers", handled, got[0], got[1], got[2], got[3])
	}
	if !even {
		return errors.New("stock does not say what the reservations say")
	}
	// As it closes, the library gives back messages whose transaction still commits.
	left, atOnce := w.filled-handled, w.handlers*(1+w.config.Consume.Qos.PrefetchCount)
	return w.queue.holds(ctx, left, left+atOnce)
}
