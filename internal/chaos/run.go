// Package chaos runs all of Baton under load, does to it what happens to systems,
// and then says whether every order that a client was told of was handled once.
//
// What is done follows from a seed; see [Plan].
package chaos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/check"
	"example.com/baton/internal/provision"
	"example.com/baton/internal/proxy"
	"example.com/baton/internal/servers"
	"example.com/baton/internal/stack"
	"example.com/baton/internal/wrongclock"
)

// Options say how a run is to be.
type Options struct {
	// Home keeps data and logs of the run. Required, and new.
	Home *servers.Home
	// Kind is how the servers run. Defaults to local.
	Kind servers.Kind
	// Seed is what the plan is made from.
	Seed uint64
	// Duration and Orders: the load ends when so much time has passed and the
	// plan is carried out, and so many orders were accepted.
	Duration time.Duration
	Orders   int
	// Rate is how many orders are placed in a second. Defaults to 60. Fewer than
	// five sixths of it accepted is a load that fell short.
	Rate int
	// Build are more flags for go build.
	Build []string
	// Progress receives what happens as it happens, by several goroutines at once.
	Progress func(line string)
}

const (
	// A run as long as this has to have had each kind of fault. In a shorter one a
	// step may not be reached before the next fault is due.
	wholeRun = 3 * time.Minute

	settlePatience = 3 * time.Minute  // for quiet, once all is mended
	stepPatience   = 30 * time.Second // for an armed fault to happen
	healPatience   = time.Minute      // for the services to mend what they mend themselves
)

// run is one run under way.
type run struct {
	Options
	stack      *stack.Stack
	links      map[string]links // by process
	management *provision.Management
	bindings   map[binding]bool // that there are when all is well
	orders     *pgxpool.Pool    // as the superuser, past the proxies
	inventory  *pgxpool.Pool
	load       *load
	begin      time.Time
	watching   sync.WaitGroup

	mu         sync.Mutex
	faults     map[Kind]int
	recoveries map[Kind][]time.Duration
	problems   []string
	lives      map[life]counters
}

// links are the ways of a process to its servers.
type links struct{ broker, database *proxy.Proxy }

// Run carries out the plan under load, mends everything, waits for quiet and
// checks. An error means that there is no result: it could not be set up, could
// not look, or was interrupted. Nothing of it runs any more then, or after
// success.
func Run(ctx context.Context, opts Options) (_ Report, err error) {
	opts.Rate = cmp.Or(opts.Rate, 60)
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	r := &run{
		Options: opts, links: make(map[string]links), faults: make(map[Kind]int),
		recoveries: make(map[Kind][]time.Duration), lives: make(map[life]counters),
	}
	defer func() {
		for _, l := range r.links {
			err = errors.Join(err, l.broker.Close(), l.database.Close())
		}
	}()
	if err := r.prepare(); err != nil {
		return Report{}, err
	}
	if err := r.stack.Start(ctx); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, r.stack.Stop(ctx)) }()
	return r.run(ctx)
}

// prepare makes the stack, with a proxy in front of each server for each process.
func (r *run) prepare() error {
	overlay := filepath.Join(r.Home.Path(), "wrongclock")
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		return err
	}
	flags, err := wrongclock.Flags(overlay)
	if err != nil {
		return err
	}
	r.stack, err = stack.New(stack.Config{
		Home: r.Home, Kind: r.Kind, Orders: processes, Inventories: processes,
		Build: slices.Concat(flags, r.Build),
		Env: []string{
			"BATON_FAULTS=1", "BATON_RELAY_LEASE=" + Lease.String(),
			"BATON_AUDIT_EVERY=2s", "BATON_RETRY_TTL=1s",
		},
		Traced: true, Progress: r.Progress,
	})
	if err != nil {
		return err
	}
	for _, p := range r.stack.Processes() {
		var l links
		if l.broker, err = proxy.New(p.BrokerAddr); err != nil {
			return err
		}
		if l.database, err = proxy.New(p.DatabaseAddr); err != nil {
			return errors.Join(err, l.broker.Close())
		}
		p.BrokerAddr, p.DatabaseAddr = l.broker.Addr(), l.database.Addr()
		r.links[p.Name] = l
	}
	return nil
}

func (r *run) run(ctx context.Context) (Report, error) {
	var err error
	if r.management, err = provision.NewManagement(r.stack.Broker.ManagementURL()); err != nil {
		return Report{}, err
	}
	for url, pool := range map[string]**pgxpool.Pool{
		r.stack.AdminURL(stack.Order): &r.orders, r.stack.AdminURL(stack.Inventory): &r.inventory,
	} {
		if *pool, err = pgxpool.New(ctx, url); err != nil {
			return Report{}, err
		}
		defer (*pool).Close()
	}
	if err := r.healthy(ctx); err != nil {
		return Report{}, err
	}
	if r.bindings, err = r.listBindings(ctx); err != nil {
		return Report{}, err
	}
	src := check.Sources{Orders: r.orders, Inventory: r.inventory}
	if src.Broker, err = check.NewBroker(r.stack.Broker.ManagementURL(), "/"); err != nil {
		return Report{}, err
	}
	background, stop := context.WithCancel(ctx)
	defer func() { stop(); r.watching.Wait() }()
	tap, err := check.StartTap(ctx, r.stack.Broker.AdminURL("/"), r.stack.Broker.ManagementURL())
	if err != nil {
		return Report{}, err
	}
	r.watching.Go(func() { r.readTap(background, tap) })
	for _, p := range r.stack.Processes() {
		r.watching.Go(func() { r.stack.Keep(background, 2*time.Second, p.Server) })
		r.watching.Go(func() { r.watch(background, p) })
	}
	took, err := r.disturb(ctx, background)
	if err != nil {
		return Report{}, err
	}

	r.say("all is mended; waiting until everything is handled")
	mended := time.Now()
	if err := check.Settle(ctx, src, settlePatience); err != nil {
		if errors.As(err, new(*check.Unsettled)) {
			r.problem("%v", err)
		} else {
			return Report{}, err
		}
	}
	settled := time.Since(mended)
	found, err := check.Run(ctx, src, check.Options{Quiet: true, Except: []string{}})
	if err != nil {
		return Report{}, err
	}
	if err := r.readLogs(); err != nil {
		return Report{}, err
	}
	clients, err := r.load.compare(ctx, r.orders)
	if err != nil {
		return Report{}, err
	}
	stop()
	r.watching.Wait()
	copies, _, err := tap.Read(ctx)
	if err != nil {
		return Report{}, err
	}
	sent := 0
	for _, db := range []*pgxpool.Pool{r.orders, r.inventory} {
		var n int
		if err := db.QueryRow(ctx, `select count(*) from outbox_messages`).Scan(&n); err != nil {
			return Report{}, err
		}
		sent += n
	}
	return r.report(ctx, found, clients, copies, sent, took, settled), nil
}

// disturb puts load on the stack and carries out the plan, and returns when
// everything is mended again and every client has its answer. What it starts in
// the background ends with that context.
func (r *run) disturb(ctx, background context.Context) (took time.Duration, err error) {
	var urls []string
	for _, p := range r.stack.Orders {
		urls = append(urls, p.URL())
	}
	r.load = newLoad(urls, r.Rate, fmt.Sprintf("chaos-%d", r.Seed))
	place, noMore := context.WithCancel(ctx)
	answer, give := context.WithCancel(ctx)
	defer give()
	var loading sync.WaitGroup
	r.begin = time.Now()
	loading.Go(func() { r.load.run(place, answer) })
	defer func() { noMore(); give(); loading.Wait() }()

	var carrying sync.WaitGroup
	plan := Plan(r.Seed, r.Duration)
	for track := range tracks {
		carrying.Go(func() {
			for _, s := range plan {
				if s.track == track {
					r.carryOut(ctx, background, s)
				}
			}
		})
	}
	carrying.Wait()
	// Whoever asks for more orders than are ever accepted is told so in the end.
	enough := 2*max(r.Duration, time.Duration(r.Orders/r.Rate)*time.Second) + 5*time.Minute
	for ctx.Err() == nil && (time.Since(r.begin) < r.Duration || r.load.accepted.Load() < int64(r.Orders)) {
		pause(ctx, 100*time.Millisecond)
		if time.Since(r.begin) > enough {
			r.problem("only %d orders were accepted in %.0f s, want %d", r.load.accepted.Load(), time.Since(r.begin).Seconds(), r.Orders)
			break
		}
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	r.say("mending everything")
	r.mend(ctx)
	noMore()
	answered := make(chan struct{})
	go func() { defer close(answered); loading.Wait() }()
	select {
	case <-answered:
	case <-time.After(healPatience):
		r.problem("after %s without a fault there are clients without an answer", healPatience)
		give()
		<-answered
	}
	took = time.Since(r.begin)
	if err := r.healthy(ctx); err != nil {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		r.problem("%v", err)
	}
	return took, nil
}

// healthy waits until no process complains.
func (r *run) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	for _, p := range r.stack.Processes() {
		if err := until(ctx, func() error { return p.Healthy(ctx) }); err != nil {
			return fmt.Errorf("%s is not well within %s: %w", p.Name, healPatience, err)
		}
	}
	return nil
}

// readLogs looks for what no process may ever say.
func (r *run) readLogs() error {
	for _, p := range r.stack.Processes() {
		log, err := os.ReadFile(p.LogFile)
		if err != nil {
			return err
		}
		for _, bad := range []string{"WARNING: DATA RACE", "\npanic: ", "\nfatal error: "} {
			if i := bytes.Index(log, []byte(bad)); i >= 0 {
				const most = 4 << 10
				r.problem("%s:\n%s", p.Name, log[i:min(len(log), i+most)])
			}
		}
	}
	return nil
}

// until tries until it works or ctx is done; the error is that of the last try.
func until(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return err
		}
	}
}

// pause waits for d, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (r *run) say(format string, args ...any) {
	r.Progress(fmt.Sprintf(format, args...))
}

// problem notes what is wrong apart from the rules of package check.
func (r *run) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.say("problem: %s", text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, text)
}
