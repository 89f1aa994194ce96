package system

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/baton/shared/events"
)

// Order is an order that a client was told is accepted.
type Order struct {
	OrderID  string
	EventID  string        // of its order.created
	Customer string        // unique, so that a second order for the same request shows
	Items    []events.Item // as they were asked for
	Tries    int           // requests it took until there was an answer
}

// Place places n orders as a correct client does: each with an Idempotency-Key,
// and again with the same key until there is an answer. Without items each order
// is for one to three of one or two of the skus that are plenty.
func (s *System) Place(n int, items ...events.Item) []Order {
	s.t.Helper()
	return s.Placing(n, items...).Wait()
}

// Placing is Place in the background.
func (s *System) Placing(n int, items ...events.Item) *Load {
	return s.load(func(stop <-chan struct{}, another func() bool) {
		for range n {
			if !another() {
				return
			}
		}
	}, items)
}

// Load places orders in the background, about perSecond of them as long as the
// services keep up, until it is told to stop.
func (s *System) Load(perSecond int, items ...events.Item) *Load {
	return s.load(func(stop <-chan struct{}, another func() bool) {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-stop:
				return
			}
			if !another() {
				return
			}
		}
	}, items)
}

// Load is orders being placed.
type Load struct {
	stop chan struct{}
	once sync.Once
	done chan struct{}

	mu     sync.Mutex
	orders []Order
}

// Wait waits until the last order is accepted and returns all of this load.
func (l *Load) Wait() []Order {
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.orders
}

// Stop places no further order, and waits for those that are under way.
func (l *Load) Stop() []Order {
	l.once.Do(func() { close(l.stop) })
	return l.Wait()
}

// load runs pace, which calls another for every order it wants. At most Clients
// orders are under way at once; another waits, and is false when the test is
// over.
func (s *System) load(pace func(stop <-chan struct{}, another func() bool), items []events.Item) *Load {
	l := &Load{stop: make(chan struct{}), done: make(chan struct{})}
	ctx := s.t.Context() // done just before the cleanup below
	go func() {
		defer close(l.done)
		var clients errgroup.Group
		clients.SetLimit(s.opts.Clients)
		pace(l.stop, func() bool {
			clients.Go(func() error {
				if o, ok := s.place(ctx, items); ok {
					l.mu.Lock()
					defer l.mu.Unlock()
					l.orders = append(l.orders, o)
				}
				return nil
			})
			return ctx.Err() == nil
		})
		_ = clients.Wait() // they return no error
	}()
	s.t.Cleanup(func() { l.Stop() })
	return l
}

// place sends one order until it is answered. It is false when the test has
// ended before.
func (s *System) place(ctx context.Context, items []events.Item) (Order, bool) {
	o := s.request(items)
	body, err := json.Marshal(map[string]any{"customerId": o.Customer, "amount": 199.5, "currency": "CNY", "items": o.Items})
	if err != nil {
		s.t.Error(err)
		return o, false
	}
	key := rand.Text()
	answer, tries, ok := s.until(ctx, http.StatusCreated, func(base string) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/orders", strings.NewReader(string(body)))
		if err == nil {
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Idempotency-Key", key)
		}
		return req, err
	})
	if !ok {
		return o, false
	}
	var placed struct{ OrderID, EventID string }
	if err := json.Unmarshal(answer, &placed); err != nil || placed.OrderID == "" || placed.EventID == "" {
		s.t.Errorf("the answer to an order is %s (%v)", answer, err)
		return o, false
	}
	o.OrderID, o.EventID, o.Tries = placed.OrderID, placed.EventID, tries
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted = append(s.accepted, o)
	return o, true
}

func (s *System) request(items []events.Item) Order {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counter++
	n := s.counter
	if items == nil {
		items = []events.Item{{SKU: fmt.Sprintf("SKU-%d", n%10+1), Quantity: int64(n%3 + 1)}}
		if n%2 == 0 {
			items = append(items, events.Item{SKU: fmt.Sprintf("SKU-%d", n%7+1), Quantity: 1})
		}
	}
	return Order{Customer: fmt.Sprintf("C-%d", n), Items: items}
}

// Cancel cancels an order, as often as it takes to get an answer, and reports
// whether it is cancelled; it is not if inventory had rejected it.
func (s *System) Cancel(o Order) bool {
	ctx := s.t.Context()
	_, _, ok := s.until(ctx, http.StatusOK, func(base string) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodPost, base+"/orders/"+o.OrderID+"/cancel", nil)
	})
	if ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cancelled[o.OrderID] = true
	}
	return ok
}

// until sends a request to one order process after the other until it is
// answered with the status that is wanted. What is neither that nor a reason to
// try again fails the test, except a 409: that is an answer too.
func (s *System) until(ctx context.Context, want int, request func(base string) (*http.Request, error)) (answer []byte, tries int, ok bool) {
	const slowest = 200 * time.Millisecond
	for wait := 10 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, slowest) {
		tries++
		req, err := request(s.someOrderURL())
		if err != nil {
			s.t.Error(err)
			return nil, tries, false
		}
		status, answer, err := s.ask(req)
		switch {
		case err == nil && status == want:
			return answer, tries, true
		case err == nil && status == http.StatusConflict:
			return answer, tries, false
		case err == nil && status < http.StatusInternalServerError:
			s.t.Errorf("%s %s: %d %s", req.Method, req.URL, status, answer)
			return nil, tries, false
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return nil, tries, false
}

func (s *System) ask(req *http.Request) (status int, answer []byte, err error) {
	res, err := s.http.Do(req)
	if err == nil {
		defer res.Body.Close()
		status = res.StatusCode
		answer, err = io.ReadAll(res.Body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses[status]++
	return status, answer, err
}

// someOrderURL goes round the order processes.
func (s *System) someOrderURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.orders[s.next%len(s.orders)].URL()
}
