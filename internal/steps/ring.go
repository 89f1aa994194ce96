// Package steps keeps the last steps that events have taken through a service
// and streams them to whoever looks on.
package steps

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// Hook is what the libraries call at each step of the flow: outbox.Relay.Observe
// and its like. An error makes the step fail.
type Hook = func(ctx context.Context, step string, ids []string) error

// Chain returns a hook that calls hooks in order and stops at the first error.
// A nil hook is left out.
func Chain(hooks ...Hook) Hook {
	return func(ctx context.Context, step string, ids []string) error {
		for _, hook := range hooks {
			if hook == nil {
				continue
			}
			if err := hook(ctx, step, ids); err != nil {
				return err
			}
		}
		return nil
	}
}

// Step is one event at one step.
type Step struct {
	// Seq grows by one with every step. It starts at the microsecond in which
	// the ring was made, so that a number from before a restart is always
	// smaller than any after it.
	Seq  int64     `json:"seq"`
	At   time.Time `json:"at"`
	Step string    `json:"step"` // such as "relay.sent"
	ID   string    `json:"id"`   // event id
}

// Ring holds the last steps. It is of fixed size: nobody who looks on, or fails
// to, can make it grow or slow down the flow.
type Ring struct {
	mu      sync.Mutex
	ring    []Step // the step with number s is ring[s%len(ring)]
	first   int64  // number of the first step ever
	next    int64  // number of the next step
	changed chan struct{}
	closed  bool
}

// New returns a ring of the last size steps; 4096 if size is 0.
func New(size int) *Ring {
	first := time.Now().UnixMicro()
	return &Ring{ring: make([]Step, cmp.Or(size, 4096)), first: first, next: first}
}

// Observe records that ids reached step. It is a [Hook] and never fails.
func (r *Ring) Observe(_ context.Context, step string, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	at := time.Now().UTC()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.ring[r.next%int64(len(r.ring))] = Step{Seq: r.next, At: at, Step: step, ID: id}
		r.next++
	}
	r.wake()
	return nil
}

// Close ends the streams of [Ring.Handler], which otherwise last as long as
// their clients like; register it with http.Server.RegisterOnShutdown. Steps
// are still recorded.
func (r *Ring) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.wake()
}

// wake lets waiting readers look again. The channel exists only while somebody
// waits, so that an unwatched ring allocates nothing.
func (r *Ring) wake() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// read fills buf with the steps that follow number after. dropped is how many of
// those the ring no longer holds. With nothing to read it returns a channel that
// is closed when that changes, or closed = true after Close.
func (r *Ring) read(after int64, buf []Step) (n int, dropped int64, changed <-chan struct{}, closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, 0, nil, true
	}
	from := max(after+1, r.first)
	if oldest := r.next - int64(len(r.ring)); from < oldest {
		from, dropped = oldest, oldest-from
	}
	for n < len(buf) && from < r.next {
		buf[n] = r.ring[from%int64(len(r.ring))]
		n, from = n+1, from+1
	}
	if n == 0 {
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed = r.changed
	}
	return n, dropped, changed, false
}
