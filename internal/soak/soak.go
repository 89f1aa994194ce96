// Package soak runs all of Baton under a steady load for many orders, removing
// what is old as it goes, and says whether anything grows that should not.
//
// The time under load is cut in quarters. The first is for warming up: caches
// fill, and tables reach the size at which as much is removed as comes in. Then
// each figure must be in the last quarter what it was in the second, by the
// median of the quarter's samples, which a few slow moments of the machine do
// not move. See [Figure] for how much more is allowed.
package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/check"
	"example.com/baton/internal/provision"
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
	// Orders is how many are placed. Defaults to 200000.
	Orders int
	// Rate is how many are placed in a second, as long as the services keep up.
	// Defaults to 400.
	Rate int
	// Progress receives what happens as it happens, by several goroutines at once.
	Progress func(line string)
}

const (
	settlePatience = 3 * time.Minute // for quiet, after the last order
	samples        = 120             // in one run, unless it is very short or very long
	growth         = 0.1             // by which part more a figure may be in the last quarter than in the second
)

// keep is what the services are told to keep, short enough for all of it to be
// removed many times over. An event may be a minute old, so that a moment in
// which the machine does something else kills none.
type keep struct{ outbox, keys, pruneEvery, eventAge, inbox time.Duration }

func keepFor(load time.Duration) keep {
	short := min(max(load/32, time.Second), 15*time.Second)
	k := keep{outbox: short, keys: short, pruneEvery: max(short/3, time.Second), eventAge: time.Minute}
	k.inbox = k.eventAge + 2*atEnd
	return k
}

// atEnd is both the replay window and the age of the oldest backup: nobody
// replays here, and nobody restores.
const atEnd = time.Second

func (k keep) env() []string {
	return []string{
		"BATON_OUTBOX_KEEP=" + k.outbox.String(), "ORDER_KEY_KEEP=" + k.keys.String(),
		"BATON_PRUNE_EVERY=" + k.pruneEvery.String(), "BATON_MAX_EVENT_AGE=" + k.eventAge.String(),
		"BATON_REPLAY_WINDOW=" + atEnd.String(), "BATON_BACKUP_AGE=" + atEnd.String(),
		"BATON_INBOX_KEEP=" + k.inbox.String(),
	}
}

// Run places the orders, waits until all are handled, and holds the figures
// against each other and the databases against the rules of package check. An
// error means that there is no result: it could not be set up, could not look,
// or was interrupted. Nothing of it runs any more then, or after success.
func Run(ctx context.Context, opts Options) (_ Report, err error) {
	opts.Orders, opts.Rate = cmp.Or(opts.Orders, 200_000), cmp.Or(opts.Rate, 400)
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	kept := keepFor(opts.planned())
	s, err := stack.New(stack.Config{Home: opts.Home, Kind: opts.Kind, Env: kept.env(), Progress: opts.Progress})
	if err != nil {
		return Report{}, err
	}
	if err := s.Start(ctx); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, s.Stop(ctx)) }()
	r := run{Options: opts, keep: kept, stack: s}
	return r.run(ctx)
}

// planned is how long the load takes if the services keep up.
func (o Options) planned() time.Duration {
	return time.Duration(o.Orders) * time.Second / time.Duration(o.Rate)
}

// run is one run under way.
type run struct {
	Options
	keep  keep
	stack *stack.Stack
}

func (r *run) run(ctx context.Context) (Report, error) {
	broker, err := check.NewBroker(r.stack.Broker.ManagementURL(), "/")
	if err != nil {
		return Report{}, err
	}
	management, err := provision.NewManagement(r.stack.Broker.ManagementURL())
	if err != nil {
		return Report{}, err
	}
	databases := map[string]*pgxpool.Pool{}
	for _, service := range stack.Services {
		db, err := pgxpool.New(ctx, r.stack.AdminURL(service))
		if err != nil {
			return Report{}, err
		}
		defer db.Close()
		databases[service.Database] = db
	}
	orders, inventory := databases[stack.Order.Database], databases[stack.Inventory.Database]

	l := &load{url: r.stack.Orders[0].URL(), orders: r.Orders, rate: r.Rate}
	w := &watch{processes: r.stack.Processes(), databases: databases, broker: management, load: l}
	r.Progress(fmt.Sprintf("placing %d orders, %d a second", r.Orders, r.Rate))
	took, err := r.watched(ctx, w, l)
	if err != nil {
		return Report{}, err
	}

	r.Progress("waiting until everything is handled")
	found, err := check.RunSettled(ctx, check.Sources{Orders: orders, Inventory: inventory, Broker: broker}, check.Options{
		NoFaults: true, Except: []string{}, OutboxKeep: r.keep.outbox, InboxKeep: r.keep.inbox,
	}, settlePatience)
	if err != nil {
		return Report{}, err
	}
	rep := Report{
		Check: found, Accepted: int(l.accepted.Load()), Repeated: int(l.repeated.Load()), Rate: r.Rate,
		LoadSeconds: took.Seconds(), OrdersPerSecond: float64(l.accepted.Load()) / took.Seconds(),
		Samples: len(w.samples), Settings: r.keep.env(), Problems: append([]string{}, l.problems()...),
		Figures: compare(w.samples, took),
		Origin:  record.NewOrigin(ctx, map[string]string{"postgresql": r.stack.Postgres.Version(), "rabbitmq": r.stack.Broker.Version()}),
	}
	rep.conclude(r.Orders, w.missed)
	return rep, nil
}

// watched runs the load and takes samples as long as it lasts.
func (r *run) watched(ctx context.Context, w *watch, l *load) (took time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	every := min(max(r.planned()/samples, 250*time.Millisecond), 5*time.Second)
	begin := time.Now()
	var loading sync.WaitGroup
	defer loading.Wait()
	done := make(chan struct{})
	loading.Go(func() { defer close(done); l.run(ctx) })
	tick := time.NewTicker(every)
	defer tick.Stop()
	for said := begin; ; {
		select {
		case <-done:
			return time.Since(begin), ctx.Err()
		case <-tick.C:
			if err := w.take(ctx, time.Since(begin)); err != nil && ctx.Err() == nil {
				r.Progress("no sample: " + err.Error())
			}
			if time.Since(said) > 15*time.Second {
				said = time.Now()
				r.Progress(fmt.Sprintf("%d orders after %.0f s; %s", l.accepted.Load(), time.Since(begin).Seconds(), w.last()))
			}
		}
	}
}

// compare makes the figures from samples of a load that took so long.
func compare(samples []sample, took time.Duration) []Figure {
	quarters := map[key][4][]float64{}
	for _, s := range samples {
		q := min(int(4*s.at/max(took, 1)), 3)
		for k, v := range s.values {
			all := quarters[k]
			all[q] = append(all[q], v)
			quarters[k] = all
		}
	}
	keys := slices.SortedFunc(maps.Keys(quarters), func(a, b key) int {
		return cmp.Or(cmp.Compare(slices.Index(whats, a.what), slices.Index(whats, b.what)), cmp.Compare(a.where, b.where))
	})
	var figures []Figure
	for _, k := range keys {
		f := Figure{What: k.what.name, Where: k.where, Unit: k.what.unit, Judged: k.judged()}
		for q, values := range quarters[k] {
			if len(values) > 0 {
				slices.Sort(values)
				f.Quarters[q] = values[len(values)/2]
			}
		}
		f.Most = max(f.Quarters[1]*(1+growth), f.Quarters[1]+k.what.floor)
		f.Grew = f.Judged && f.Quarters[3] > f.Most
		figures = append(figures, f)
	}
	return figures
}
