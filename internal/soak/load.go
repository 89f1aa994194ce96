package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/baton/shared/events"
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
	// clients is how many requests are under way at most. When all are, the rest
	// comes later.
	clients     = 64
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
	for range clients {
		all.Go(func() {
			// A connection of its own, and the client that has waited longest is next:
			// so there are as many connections at any time, and none is closed for
			// being idle.
			c := &client{load: l, http: &http.Client{Transport: &http.Transport{}, Timeout: patience}}
			defer c.http.CloseIdleConnections()
			for n := range next {
				c.order(ctx, n)
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

type client struct {
	*load
	http *http.Client
}

// order places an order, and cancels some of them.
func (c *client) order(ctx context.Context, n int) {
	name := fmt.Sprintf("soak-%d", n)
	items := []events.Item{{SKU: fmt.Sprintf("SKU-%d", n%10+1), Quantity: int64(n%3 + 1)}}
	if n%2 == 0 {
		items = append(items, events.Item{SKU: fmt.Sprintf("SKU-%d", n%7+1), Quantity: 1})
	}
	body, err := json.Marshal(map[string]any{"customerId": name, "amount": 199.5, "currency": "CNY", "items": items})
	if err != nil {
		c.complain("write an order: %v", err)
		return
	}
	answer, ok := c.until(ctx, http.StatusCreated, "/orders", body, name)
	if !ok {
		return
	}
	c.accepted.Add(1)
	if n%cancelEvery != 0 {
		return
	}
	var placed struct{ OrderID string }
	if err := json.Unmarshal(answer, &placed); err != nil || placed.OrderID == "" {
		c.complain("the answer to an order is %.200s", answer)
		return
	}
	c.until(ctx, http.StatusOK, "/orders/"+placed.OrderID+"/cancel", nil, "")
}

// until sends a request until it is answered with the status that is wanted.
// While the service says that it cannot at the moment, it is sent again.
func (c *client) until(ctx context.Context, want int, path string, body []byte, key string) (answer []byte, ok bool) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		begin := time.Now()
		status, answer, err := c.ask(ctx, path, body, key)
		switch {
		case ctx.Err() != nil:
			return nil, false
		case err == nil && status == want:
			c.note(time.Since(begin))
			return answer, true
		case err == nil && status != http.StatusServiceUnavailable:
			c.complain("%s: %d %.200s", path, status, answer)
			return nil, false
		}
		c.repeated.Add(1)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, false
		}
	}
}

func (c *client) ask(ctx context.Context, path string, body []byte, key string) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if key != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
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
