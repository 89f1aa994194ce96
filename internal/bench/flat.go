package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/internal/samples"
	"example.com/baton/shared/rabbit"
)

// flat measures what a claim, a POST and the handling of a batch cost while
// tables grow.
func (r *run) flat(ctx context.Context) error {
	if err := r.ownQueue(ctx); err != nil {
		return err
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	for _, series := range []struct {
		name string
		grow func(ctx context.Context, from, to int) error
		most int
	}{
		{"published rows", func(ctx context.Context, from, to int) error {
			_, err := r.orders.Exec(ctx, publishedSQL, from+1, to)
			return errors.Join(err, r.vacuum(ctx))
		}, published},
		{"rows in backoff", func(ctx context.Context, from, to int) error {
			_, err := r.orders.Exec(ctx, backoffSQL, from+1, to)
			return errors.Join(err, r.vacuum(ctx))
		}, inBackoff},
		{"inbox rows", r.growInbox, 1_000_000},
		{"rows published under an old snapshot", r.publishMore, messages},
	} {
		if err := r.clear(ctx); err != nil {
			return err
		}
		if series.name == "rows published under an old snapshot" {
			old, err := r.orders.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				return err
			}
			defer old.Rollback(ctx)
			if _, err := old.Exec(ctx, `select count(*) from orders`); err != nil {
				return err
			}
		}
		size := 0
		for part := 0; part <= 4; part++ {
			if part == 3 { // 0, a quarter, a half and all are enough
				continue
			}
			to := series.most / 4 * part
			if to > size {
				if err := series.grow(ctx, size, to); err != nil {
					return fmt.Errorf("%d %s: %w", to, series.name, err)
				}
				size = to
			}
			p, err := r.cost(ctx)
			if err != nil {
				return err
			}
			p.Series, p.Size = series.name, size
			r.rep.Costs = append(r.rep.Costs, p)
			r.Progress(fmt.Sprintf("%d %s: claim %.1f ms, POST %.1f ms, handling %.1f ms", size, series.name, p.Claim, p.Post, p.Handling))
		}
	}
	return nil
}

func (r *run) vacuum(ctx context.Context) error {
	_, err := r.orders.Exec(ctx, `vacuum analyze outbox_messages`)
	return err
}

const inboxSQL = `
insert into inbox_messages (consumer_name, event_id, received_at)
select 'inventory.order-events', 'old-' || n, now() - interval '1 day' + n * interval '10 ms' from generate_series($1::int, $2::int) n`

func (r *run) growInbox(ctx context.Context, from, to int) error {
	_, err := r.inventory.Exec(ctx, inboxSQL, from+1, to)
	if err == nil {
		_, err = r.inventory.Exec(ctx, `vacuum analyze inbox_messages`)
	}
	return err
}

// publishMore has the relay publish rows, so that their old versions are in its
// index until a vacuum may remove them.
func (r *run) publishMore(ctx context.Context, from, to int) error {
	if err := r.start(ctx, r.stack.Orders[0]); err != nil {
		return err
	}
	if err := r.fill(ctx, samples.Events(to-from, r.prefix())); err != nil {
		return err
	}
	_, err := until(ctx, "rows not published", 0, counting(r.orders, `select count(*) from outbox_messages where published_at is null`))
	if err := errors.Join(err, r.stop(ctx)); err != nil {
		return err
	}
	_, err = r.ch.QueuePurge(inventoryQueue, false) // inventory's time is not what is measured here
	return err
}

// costRate is how many orders are placed in a second while costs are measured.
const costRate = 100

// cost measures with the tables as they are.
func (r *run) cost(ctx context.Context) (Cost, error) {
	order, inventory := r.stack.Orders[0], r.stack.Inventories[0]
	if err := r.start(ctx, order, inventory); err != nil {
		return Cost{}, err
	}
	if _, err := atRate(ctx, order.URL(), costRate, time.Second, r.prefix()); err != nil {
		return Cost{}, err
	}
	received, err := watch(ctx, inventory, rabbit.StepReceived)
	if err != nil {
		return Cost{}, err
	}
	defer received.close()
	committed, err := watch(ctx, inventory, rabbit.StepCommitted)
	if err != nil {
		return Cost{}, err
	}
	defer committed.close()
	before, err := order.Metrics(ctx)
	if err != nil {
		return Cost{}, err
	}
	orders, err := atRate(ctx, order.URL(), costRate, 4*time.Second, r.prefix())
	if err != nil {
		return Cost{}, err
	}
	after, err := order.Metrics(ctx)
	if err != nil {
		return Cost{}, err
	}
	var posts, handlings []time.Duration
	for _, o := range orders {
		from, err := received.when(ctx, o.eventID)
		if err != nil {
			return Cost{}, err
		}
		to, err := committed.when(ctx, o.eventID)
		if err != nil {
			return Cost{}, err
		}
		posts, handlings = append(posts, o.answered.Sub(o.due)), append(handlings, to.Sub(from))
	}
	const number, seconds = "baton_relay_claims_total", "baton_relay_claim_seconds_total"
	return Cost{
		Claim: 1000 * (after[seconds] - before[seconds]) / (after[number] - before[number]),
		Post:  latency("", posts).P50, Handling: latency("", handlings).P50,
	}, r.stop(ctx)
}
