package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"example.com/baton/internal/samples"
	"example.com/baton/internal/stack"
	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// The queues of the services. What is measured without one of them goes to a
// queue of its name all the same.
const (
	inventoryQueue = "inventory.order-events"
	orderQueue     = "order.inventory-events"
)

// stop stops all processes of the services that run.
func (r *run) stop(ctx context.Context) error {
	var g errgroup.Group
	for _, p := range r.stack.Processes() {
		g.Go(func() error { return p.Stop(ctx) })
	}
	return g.Wait()
}

// start starts processes and returns when all are ready.
func (r *run) start(ctx context.Context, processes ...*stack.Process) error {
	var g errgroup.Group
	for _, p := range processes {
		g.Go(func() error { return p.Start(ctx) })
	}
	return g.Wait()
}

// hot is the SKU of those runs in which all orders are for one.
const hot = "SKU-HOT"

const stockUpSQL = `
insert into stock (sku, on_hand) select 'SKU-B' || n, 1000000000 from generate_series(0, $1 - 1) n
union all select $2, 1000000000`

func (r *run) stockUp(ctx context.Context) error {
	_, err := r.inventory.Exec(ctx, stockUpSQL, samples.SKUs, hot)
	return err
}

const tablesSQL = `
select string_agg(format('%I', relname), ', ') from pg_class
where relkind = 'r' and relnamespace = 'public'::regnamespace and relname not in ('goose_db_version', 'stock', 'outbox_grown')`

// clear empties all tables and queues.
func (r *run) clear(ctx context.Context) error {
	for _, db := range []*pgxpool.Pool{r.orders, r.inventory} {
		var tables string
		if err := db.QueryRow(ctx, tablesSQL).Scan(&tables); err != nil {
			return err
		}
		if _, err := db.Exec(ctx, `truncate `+tables); err != nil {
			return err
		}
	}
	if _, err := r.inventory.Exec(ctx, `update stock set reserved = 0`); err != nil {
		return err
	}
	// What the last run has left to write must not be written during the next.
	if _, err := r.orders.Exec(ctx, `checkpoint`); err != nil {
		return err
	}
	for _, queue := range []string{inventoryQueue, orderQueue} {
		if _, err := r.ch.QueuePurge(queue, false); err != nil {
			return err
		}
	}
	return nil
}

// queue puts an empty queue of a kind in the place of inventory's.
func (r *run) queue(kind string) error {
	if _, err := r.ch.QueueDelete(inventoryQueue, false, false, false); err != nil {
		return err
	}
	if _, err := r.ch.QueueDeclare(inventoryQueue, true, false, false, false, amqp.Table{"x-queue-type": kind}); err != nil {
		return err
	}
	for _, key := range []string{events.OrderCreated, events.OrderCancelled} {
		if err := r.ch.QueueBind(inventoryQueue, key, events.OrderExchange, false, nil); err != nil {
			return err
		}
	}
	return nil
}

// ownQueue lets inventory declare its queue as it likes it.
func (r *run) ownQueue(ctx context.Context) error {
	if _, err := r.ch.QueueDelete(inventoryQueue, false, false, false); err != nil {
		return err
	}
	if err := r.start(ctx, r.stack.Inventories[0]); err != nil {
		return err
	}
	return r.stop(ctx)
}

// fill commits messages to the outbox of the order service.
func (r *run) fill(ctx context.Context, msgs []outbox.Message) error {
	for chunk := range slices.Chunk(msgs, 2000) {
		tx, err := r.orders.Begin(ctx)
		if err != nil {
			return err
		}
		if err := outbox.Enqueue(ctx, tx, chunk...); err != nil {
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
	}
	_, err := r.orders.Exec(ctx, `analyze outbox_messages`)
	return err
}

// depth is how many messages are ready in a queue.
func (r *run) depth(queue string) (int, error) {
	q, err := r.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return q.Messages, err
}

// stuck is how long nothing may move before a run is given up.
const stuck = 30 * time.Second

// until looks at count every few milliseconds until it is goal, and returns the
// rate from its first change on. So what it takes to get going does not count.
func until(ctx context.Context, what string, goal int, count func(context.Context) (int, error)) (perSecond float64, err error) {
	first, err := count(ctx)
	if err != nil {
		return 0, err
	}
	from, last := first, first
	begin := time.Now()
	moved := begin
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for last != goal {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		now, err := count(ctx)
		if err != nil {
			return 0, err
		}
		switch {
		case now == last && time.Since(moved) > stuck:
			return 0, fmt.Errorf("%s: %d of %d after %s, and nothing moves", what, now, goal, time.Since(begin).Round(time.Second))
		case now == last:
			continue
		case last == first && from == first: // it moves
			from, begin = now, time.Now()
		}
		last, moved = now, time.Now()
	}
	return float64(abs(goal-from)) / time.Since(begin).Seconds(), nil
}

func abs(n int) int { return max(n, -n) }
