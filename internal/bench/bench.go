// Package bench measures how fast Baton is beside what limits it and beside other
// ways to do the same.
//
// A rate says little on a machine that other programs use too. So each is
// measured together with its floor, in turn and in the same run: what the broker
// or the database does for the plainest client with the same guarantee. What
// counts is the ratio, as the median of several such pairs.
//
// The product is measured from outside, as real processes of both services with
// everything on: by the depth of queues, by rows, by answers and by the steps that
// it shows to anybody.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/record"
	"example.com/baton/internal/servers"
	"example.com/baton/internal/stack"
)

// Options say how a run is to be.
type Options struct {
	// Home keeps data and logs of the run. Required, and new.
	Home *servers.Home
	// Kind is how the servers run. Defaults to local.
	Kind servers.Kind
	// Consume runs the consumer of inventory by itself until ctx is done. Required.
	Consume func(ctx context.Context, databaseURL, amqpURL string) error
	// Pairs is how often each floor and the product are measured in turn. Defaults
	// to 3, and to 1 if Quick.
	Pairs int
	// Quick leaves out everything but the goals that a floor is enough for.
	Quick bool
	// Peers is the folder of the module bench/peers. Without it there are none.
	Peers string
	// Progress receives what happens as it happens, by several goroutines at once.
	Progress func(line string)
}

// messages is how many a rate is measured over: so many that its start does not
// count.
const messages = 60_000

// Run measures. An error means that there is no result: it could not be set up,
// something was lost or done twice, or it was interrupted. Nothing of it runs any
// more then, or after success.
func Run(ctx context.Context, opts Options) (_ Report, err error) {
	if opts.Quick {
		opts.Pairs = cmp.Or(opts.Pairs, 1)
	}
	opts.Pairs = cmp.Or(opts.Pairs, 3)
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	s, err := stack.New(stack.Config{Home: opts.Home, Kind: opts.Kind, Orders: 2, Inventories: 2, Progress: opts.Progress})
	if err != nil {
		return Report{}, err
	}
	if err := s.Start(ctx); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, s.Stop(ctx)) }()
	r := run{Options: opts, stack: s, amqpURL: s.Broker.AdminURL("/"), figures: map[string][]Pair{}}
	for _, of := range []struct {
		stack.Service
		db **pgxpool.Pool
	}{{stack.Order, &r.orders}, {stack.Inventory, &r.inventory}} {
		if *of.db, err = pgxpool.New(ctx, s.AdminURL(of.Service)); err != nil {
			return Report{}, err
		}
		defer (*of.db).Close()
	}
	conn, err := amqp.Dial(r.amqpURL)
	if err != nil {
		return Report{}, err
	}
	defer conn.Close()
	if r.ch, err = conn.Channel(); err != nil {
		return Report{}, err
	}
	if err := r.measure(ctx); err != nil {
		return Report{}, err
	}
	r.rep.conclude(r.figures)
	r.rep.Pairs, r.rep.Messages, r.rep.Quick = opts.Pairs, messages, opts.Quick
	r.rep.Origin = record.NewOrigin(ctx, map[string]string{"postgresql": s.Postgres.Version(), "rabbitmq": s.Broker.Version()})
	return r.rep, nil
}

// run is one run under way.
type run struct {
	Options
	stack             *stack.Stack
	orders, inventory *pgxpool.Pool // as the superuser
	amqpURL           string
	ch                *amqp.Channel

	figures map[string][]Pair // by the id of what was compared
	rep     Report
	runs    int // names what is made for each
}

// measure runs the stages. No process of the services runs before or after one.
func (r *run) measure(ctx context.Context) error {
	if err := r.stop(ctx); err != nil {
		return err
	}
	if err := r.stockUp(ctx); err != nil {
		return err
	}
	for _, stage := range []struct {
		name string
		do   func(context.Context) error
		on   bool
	}{
		{"relay, classic queue", func(ctx context.Context) error { return r.relays(ctx, "R1", "classic") }, true},
		{"relay, quorum queue", func(ctx context.Context) error { return r.relays(ctx, "R2", "quorum") }, true},
		{"consumer", r.consumers, true},
		{"POST /orders", r.posts, true},
		{"latency, idle", r.idle, true},
		{"latency, under load", r.underLoad, true},
		{"several relays, many rows", r.crowded, !r.Quick},
		{"both services, one and two processes each", r.scale, !r.Quick},
		{"cost against size", r.flat, !r.Quick},
		{"peers", r.peers, r.Peers != ""},
	} {
		if !stage.on {
			continue
		}
		begin := time.Now()
		r.Progress(stage.name)
		if err := stage.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", stage.name, err)
		}
		if err := r.stop(ctx); err != nil {
			return err
		}
		r.Progress(fmt.Sprintf("%s: done after %.0f s", stage.name, time.Since(begin).Seconds()))
	}
	return nil
}

// note keeps a pair, and shows it.
func (r *run) note(id string, p Pair) {
	r.figures[id] = append(r.figures[id], p)
	c := comparisons[id]
	r.Progress(fmt.Sprintf("%d of %d: %s %s, %s %s: %.2f", len(r.figures[id]), r.Pairs,
		c.floor, c.show(p.Floor), c.product, c.show(p.Product), p.Ratio()))
}

// prefix returns a new beginning for the ids of events.
func (r *run) prefix() string {
	r.runs++
	return fmt.Sprintf("bench-%d", r.runs)
}
