package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/baton/internal/samples"
	"example.com/baton/internal/stack"
)

// published is how many rows a grown outbox has, and inBackoff how many wait for
// their next attempt.
const (
	published = 2_000_000
	inBackoff = 100_000
)

// crowded compares one relay on a table of its own with two at once, and with one
// on a table in which much is left.
func (r *run) crowded(ctx context.Context) error {
	if err := r.clear(ctx); err != nil {
		return err
	}
	if err := r.growOutbox(ctx); err != nil {
		return err
	}
	first, second := r.stack.Orders[0], r.stack.Orders[1]
	relay := func(by ...*stack.Process) (float64, error) {
		perSecond, err := r.relayMore(ctx, "quorum", samples.Events(messages, r.prefix()), by...)
		return perSecond, errors.Join(err, r.stop(ctx))
	}
	for range r.Pairs {
		if err := r.clear(ctx); err != nil {
			return err
		}
		one, err := relay(first)
		if err != nil {
			return err
		}
		if err := r.clear(ctx); err != nil {
			return err
		}
		two, err := relay(first, second)
		if err != nil {
			return err
		}
		r.note("R6.two", Pair{one, two})
		if err := r.clear(ctx); err != nil {
			return err
		}
		if _, err := r.orders.Exec(ctx, backoffSQL, 1, inBackoff); err != nil {
			return err
		}
		waiting, err := relay(first)
		if err != nil {
			return err
		}
		r.note("R6.backoff", Pair{one, waiting})
		if err := r.clear(ctx); err != nil {
			return err
		}
		if err := r.swapOutbox(ctx); err != nil {
			return err
		}
		grown, err := relay(first)
		if err != nil {
			return err
		}
		if err := r.swapOutbox(ctx); err != nil {
			return err
		}
		r.note("R6.published", Pair{one, grown})
	}
	_, err := r.orders.Exec(ctx, `drop table outbox_grown`)
	return err
}

const backoffSQL = `
insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, attempt_count, next_attempt_at, last_error)
select 'backoff-' || n, 'backoff-' || n, 1, 'order.created', '{}', now(), 3, now() + interval '1 hour', 'unroutable'
from generate_series($1::int, $2::int) n`

const publishedSQL = `
insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, created_at, next_attempt_at, status, published_at)
select 'old-' || n, 'old-' || n, 1, 'order.created', jsonb_build_object('padding', repeat('x', 200)), at, at, at, 'Published', at
from generate_series($1::int, $2::int) n, lateral (select now() - interval '1 day' + n * interval '10 ms' as at) t`

// growOutbox makes a table like the outbox beside it, full of published rows.
func (r *run) growOutbox(ctx context.Context) error {
	r.Progress(fmt.Sprintf("storing %d published rows", published))
	if _, err := r.orders.Exec(ctx, publishedSQL, 1, published); err != nil {
		return err
	}
	for _, sql := range []string{
		`vacuum analyze outbox_messages`,
		`alter table outbox_messages rename to outbox_grown`,
		`create table outbox_messages (like outbox_grown including all)`,
		`alter table outbox_messages set (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000, vacuum_index_cleanup = on)`,
		`grant select, insert, update, delete on outbox_messages to order_service`,
	} {
		if _, err := r.orders.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// swapOutbox puts the grown table in the place of the other, and back.
func (r *run) swapOutbox(ctx context.Context) error {
	_, err := r.orders.Exec(ctx, `
alter table outbox_messages rename to outbox_other;
alter table outbox_grown rename to outbox_messages;
alter table outbox_other rename to outbox_grown`)
	return err
}

// scaling is for how long both services are measured together, and so many
// clients place orders meanwhile.
const (
	scaling        = 10 * time.Second
	scalingClients = 32
)

// scale compares one process of each service with two: orders placed as fast as
// they are accepted, until all are reserved.
func (r *run) scale(ctx context.Context) error {
	if err := r.ownQueue(ctx); err != nil {
		return err
	}
	for range r.Pairs {
		var rates []float64
		for n := 1; n <= 2; n++ {
			perSecond, err := r.both(ctx, r.stack.Orders[:n], r.stack.Inventories[:n])
			if err != nil {
				return err
			}
			rates = append(rates, perSecond)
		}
		r.note("S1", Pair{rates[0], rates[1]})
	}
	return nil
}

// both returns how many orders a second go from POST to reserved.
func (r *run) both(ctx context.Context, orders, inventories []*stack.Process) (perSecond float64, err error) {
	if err := r.clear(ctx); err != nil {
		return 0, err
	}
	var addrs []string
	for _, p := range orders {
		addrs = append(addrs, p.Addr)
	}
	if err := r.start(ctx, append(orders[:len(orders):len(orders)], inventories...)...); err != nil {
		return 0, err
	}
	begin := time.Now()
	if _, err := post(ctx, addrs, scalingClients, scaling, r.prefix()); err != nil {
		return 0, err
	}
	placed, err := counting(r.orders, `select count(*) from orders`)(ctx)
	if err != nil {
		return 0, err
	}
	_, err = until(ctx, "orders reserved", placed, counting(r.inventory, `select count(*) from inventory_orders where state = 'reserved'`))
	if err != nil {
		return 0, err
	}
	perSecond = float64(placed) / time.Since(begin).Seconds()
	for _, p := range inventories {
		found, err := p.Metrics(ctx)
		if err != nil {
			return 0, err
		}
		r.rep.Duplicates += int(found["baton_inbox_duplicates_total"])
	}
	_, err = until(ctx, "orders answered", placed, counting(r.orders, `select count(*) from orders where status = 'reserved'`))
	return perSecond, errors.Join(err, r.stop(ctx))
}
