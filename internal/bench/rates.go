package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"example.com/baton/internal/samples"
	"example.com/baton/internal/stack"
	"example.com/baton/shared/outbox"
)

// relays compares the relay with raw publishing to a queue of a kind.
func (r *run) relays(ctx context.Context, id, kind string) error {
	for range r.Pairs {
		msgs := samples.Events(messages, r.prefix())
		if err := r.queue(kind); err != nil {
			return err
		}
		raw, err := rawPublish(ctx, r.amqpURL, msgs)
		if err != nil {
			return err
		}
		relayed, err := r.relay(ctx, kind, msgs, r.stack.Orders[0])
		if err != nil {
			return err
		}
		r.note(id, Pair{raw, relayed})
		if err := r.allocations(ctx, r.stack.Orders[0], messages); err != nil {
			return err
		}
		if err := r.stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

// relay has messages sent by order processes, which go on running, to a queue of
// a kind, out of an outbox that is otherwise empty.
func (r *run) relay(ctx context.Context, kind string, msgs []outbox.Message, by ...*stack.Process) (perSecond float64, err error) {
	if err := r.clear(ctx); err != nil {
		return 0, err
	}
	return r.relayMore(ctx, kind, msgs, by...)
}

// relayMore is relay with the outbox as it is.
func (r *run) relayMore(ctx context.Context, kind string, msgs []outbox.Message, by ...*stack.Process) (perSecond float64, err error) {
	if err := r.queue(kind); err != nil {
		return 0, err
	}
	if err := r.fill(ctx, msgs); err != nil {
		return 0, err
	}
	if err := r.start(ctx, by...); err != nil {
		return 0, err
	}
	perSecond, err = until(ctx, "relay", len(msgs), func(context.Context) (int, error) { return r.depth(inventoryQueue) })
	if err != nil {
		return 0, err
	}
	const openSQL = `select count(*) from outbox_messages where published_at is null and failed_at is null and next_attempt_at <= now()`
	if _, err := until(ctx, "rows not published", 0, counting(r.orders, openSQL)); err != nil {
		return 0, err
	}
	if n, err := r.depth(inventoryQueue); err != nil || n != len(msgs) {
		return 0, errors.Join(err, fmt.Errorf("%d messages were sent for %d rows", n, len(msgs)))
	}
	return perSecond, nil
}

func counting(db *pgxpool.Pool, sql string) func(context.Context) (int, error) {
	return func(ctx context.Context) (n int, err error) {
		err = db.QueryRow(ctx, sql).Scan(&n)
		return n, err
	}
}

// allocations notes how many heap objects a process has made for each of n
// messages since it started.
func (r *run) allocations(ctx context.Context, p *stack.Process, n int) error {
	found, err := p.Metrics(ctx)
	if err != nil {
		return err
	}
	name := p.Service.Name + ", for each message"
	r.rep.Allocations = append(r.rep.Allocations, Figure{name, found["go_memstats_mallocs_total"] / float64(n)})
	return nil
}

// consumers compares inventory with raw consuming, and orders for one SKU with
// those for many.
func (r *run) consumers(ctx context.Context) error {
	if err := r.ownQueue(ctx); err != nil {
		return err
	}
	for range r.Pairs {
		if err := r.preload(ctx, samples.Events(messages, r.prefix())); err != nil {
			return err
		}
		raw, err := rawConsume(ctx, r.amqpURL, inventoryQueue, messages)
		if err != nil {
			return err
		}
		spread, err := r.consume(ctx, samples.Events(messages, r.prefix()))
		if err != nil {
			return err
		}
		oneSKU, err := r.consume(ctx, samples.Events(messages, r.prefix(), hot))
		if err != nil {
			return err
		}
		whole, err := r.consume(ctx, samples.Events(messages, r.prefix()), r.stack.Inventories[0])
		if err != nil {
			return err
		}
		if err := r.allocations(ctx, r.stack.Inventories[0], messages); err != nil {
			return err
		}
		r.note("C1", Pair{raw, spread})
		r.note("C3", Pair{spread, oneSKU})
		r.note("C1.whole", Pair{raw, whole})
	}
	return r.stop(ctx)
}

// preload puts messages, and nothing else, into inventory's queue.
func (r *run) preload(ctx context.Context, msgs []outbox.Message) error {
	if err := r.stop(ctx); err != nil {
		return err
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	_, err := rawPublish(ctx, r.amqpURL, msgs)
	return err
}

// consume has messages handled by inventory processes, which go on running. Without
// one it is inventory's consumer alone, in this process: nobody sends the answers
// that it stores.
func (r *run) consume(ctx context.Context, msgs []outbox.Message, by ...*stack.Process) (perSecond float64, err error) {
	if err := r.preload(ctx, msgs); err != nil {
		return 0, err
	}
	if len(by) > 0 {
		err = r.start(ctx, by...)
	} else {
		var stop func() error
		stop, err = r.consumeHere(ctx)
		defer func() { err = errors.Join(err, stop()) }()
	}
	if err != nil {
		return 0, err
	}
	// The table is counted only when the queue is nearly empty: counting it costs.
	perSecond, err = until(ctx, "consumer", len(msgs), func(ctx context.Context) (n int, err error) {
		if n, err = r.depth(inventoryQueue); n > 0 || err != nil {
			return min(len(msgs)-n, len(msgs)-1), err
		}
		return counting(r.inventory, `select count(*) from inventory_orders`)(ctx)
	})
	if err != nil {
		return 0, err
	}
	const reservedSQL = `select count(*) from inventory_orders where state = 'reserved'`
	if n, err := counting(r.inventory, reservedSQL)(ctx); err != nil || n != len(msgs) {
		return 0, errors.Join(err, fmt.Errorf("%d orders are reserved for %d messages", n, len(msgs)))
	}
	return perSecond, nil
}

// consumeHere runs the consumer of inventory until stop is called.
func (r *run) consumeHere(ctx context.Context) (stop func() error, err error) {
	url, err := r.stack.ServiceURL(stack.Inventory)
	if err != nil {
		return func() error { return nil }, err
	}
	consuming, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return r.Consume(consuming, url, r.amqpURL) })
	return func() error {
		cancel()
		return g.Wait()
	}, nil
}

// posting is for how long a rate of requests is measured.
const posting = 5 * time.Second

// posts compares POST /orders with one statement that stores an order and its
// event.
func (r *run) posts(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(r.stack.AdminURL(stack.Order))
	if err != nil {
		return err
	}
	cfg.MaxConns = 32
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer db.Close()
	order := r.stack.Orders[0]
	for range r.Pairs {
		for _, of := range []struct {
			id          string
			connections int
		}{{"A1.8", 8}, {"A1.32", 32}} {
			if err := r.clear(ctx); err != nil {
				return err
			}
			raw, err := rawInsert(ctx, db, of.connections, posting)
			if err != nil {
				return err
			}
			if err := r.clear(ctx); err != nil {
				return err
			}
			if err := r.start(ctx, order); err != nil {
				return err
			}
			posted, err := post(ctx, []string{order.Addr}, of.connections, posting, r.prefix())
			if err != nil {
				return err
			}
			if err := r.stop(ctx); err != nil {
				return err
			}
			r.note(of.id, Pair{raw, posted})
		}
	}
	return nil
}
