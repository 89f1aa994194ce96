package soak

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/baton/internal/clients"
)

// load is clients that place orders at a steady rate, one in cancelEvery of
// which is cancelled later. Each sends its order with an Idempotency-Key until it
// has an answer.
type load struct {
	url          string
	orders, rate int

	accepted, repeated atomic.Int64

	mu         sync.Mutex
	took       []time.Duration // of answered requests, since they were last asked for
	unexpected []string        // the first few answers that no client should get
}

const (
	// connections is how many requests are under way at most. When all are, the rest
	// comes later.
	connections = 64
	cancelEvery = 20
	// patience is for one answer.
	patience = 15 * time.Second
)

// run places the orders and returns when the last one has its answer, or ctx is
// done.
func (l *load) run(ctx context.Context) {
	next := make(chan int)
	var all sync.WaitGroup
	defer all.Wait()
	defer close(next)
	for range connections {
		all.Go(func() {
			// A connection of its own, and the client that has waited longest is next:
			// so there are as many connections at any time, and none is closed for
			// being idle.
			ask := &clients.Client{
				URL:   func(int) string { return l.url },
				HTTP:  &http.Client{Transport: &http.Transport{}, Timeout: patience},
				After: l.after,
			}
			defer ask.HTTP.CloseIdleConnections()
			for n := range next {
				l.client(ctx, ask, n)
			}
		})
	}
	begin := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for placed := 0; placed < l.orders; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		due := min(int(time.Since(begin).Seconds()*float64(l.rate))+1, l.orders)
		for ; placed < due; placed++ {
			select {
			case <-ctx.Done():
				return
			case next <- placed:
			}
		}
	}
}

// client places the order n, and cancels some of them.
func (l *load) client(ctx context.Context, ask *clients.Client, n int) {
	placed, err := ask.Place(ctx, n, clients.Nth("soak", n))
	if err == nil {
		l.accepted.Add(1)
		if n%cancelEvery == 0 {
			_, err = ask.Cancel(ctx, n, placed.OrderID)
		}
	}
	if errors.As(err, new(*clients.Unexpected)) { // otherwise the run is over
		l.complain("%v", err)
	}
}

// after notes how long an answer took, and counts what has to be sent again.
func (l *load) after(r clients.Response) {
	switch {
	case !r.Again:
		l.note(r.Took)
		return
	case r.Status != 0 && r.Status != http.StatusServiceUnavailable:
		l.complain("%d %.200s", r.Status, r.Body)
	}
	l.repeated.Add(1)
}

func (l *load) note(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, took)
}

// times are how long requests took that were answered since the last call,
// sorted.
func (l *load) times() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.took
	l.took = nil
	slices.Sort(took)
	return took
}

func (l *load) complain(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const most = 10
	if len(l.unexpected) < most {
		l.unexpected = append(l.unexpected, fmt.Sprintf(format, args...))
	}
}

func (l *load) problems() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unexpected
}
