package chaos

import (
	"context"
	"errors"
	"time"

	"example.com/baton/internal/check"
	"example.com/baton/internal/stack"
)

// life is one life of a process: counters start anew with each.
type life struct {
	process string
	started float64 // seconds since 1970
}

// counters are what a life has counted when it was looked at last.
type counters struct {
	absorbed float64 // duplicates that the inbox knew
	returned float64 // messages that came back because no queue took them
}

// watch reads the metrics of a process four times a second. What a life counts
// after the last look before its end is not seen, so sums are lower bounds.
func (r *run) watch(ctx context.Context, p *stack.Process) {
	for {
		if m, err := p.Metrics(ctx); err == nil { // one that does not answer has nothing to tell
			r.mu.Lock()
			r.lives[life{p.Name, m["process_start_time_seconds"]}] = counters{
				absorbed: m["baton_inbox_duplicates_total"],
				returned: m[`baton_relay_outcomes_total{outcome="unroutable"}`],
			}
			r.mu.Unlock()
		}
		if pause(ctx, 250*time.Millisecond); ctx.Err() != nil {
			return
		}
	}
}

// readTap takes what the tap has counted so far out of its queue, which would
// grow with the run. It fails while the broker is away.
func (r *run) readTap(ctx context.Context, tap *check.Tap) {
	for ctx.Err() == nil {
		_ = tap.Drain(context.WithoutCancel(ctx)) // to its end, which is near; the broker may be away
		pause(ctx, time.Second)
	}
}

const newestOrderSQL = `select coalesce(max(created_at), now()) from orders`

const unansweredSQL = `select exists (select from orders where created_at <= $1 and status = 'created')`

// measure waits until inventory has answered every order that was accepted before
// a fault was over, and notes how long that took. Other faults may come
// meanwhile, and prolong it. If that never happens it notes nothing: the checker
// tells.
func (r *run) measure(ctx context.Context, kind Kind, over time.Time) {
	var newest time.Time // by the database's clock
	if until(ctx, func() error { return r.orders.QueryRow(ctx, newestOrderSQL).Scan(&newest) }) != nil {
		return
	}
	unanswered := func() error {
		var some bool
		if err := r.orders.QueryRow(ctx, unansweredSQL, newest).Scan(&some); err != nil || !some {
			return err
		}
		return errUnanswered
	}
	if until(ctx, unanswered) == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.recoveries[kind] = append(r.recoveries[kind], time.Since(over))
	}
}

var errUnanswered = errors.New("orders without an answer")
