package system

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/baton/internal/clients"
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
	placed, err := s.client(&o.Tries).Place(ctx, 0, clients.Order{Customer: o.Customer, Items: o.Items})
	if err != nil {
		s.complain(err)
		return o, false
	}
	o.OrderID, o.EventID = placed.OrderID, placed.EventID
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted = append(s.accepted, o)
	return o, true
}

// client goes round the order processes and counts its requests.
func (s *System) client(tries *int) *clients.Client {
	return &clients.Client{
		URL: func(int) string { return s.someOrderURL() }, HTTP: s.http, MostPause: 200 * time.Millisecond,
		After: func(r clients.Response) {
			*tries++
			s.mu.Lock()
			defer s.mu.Unlock()
			s.statuses[r.Status]++
		},
	}
}

// complain fails the test unless it has ended.
func (s *System) complain(err error) {
	if !errors.Is(err, context.Canceled) {
		s.t.Error(err)
	}
}

func (s *System) request(items []events.Item) Order {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counter++
	o := clients.Nth("C", s.counter)
	if items == nil {
		items = o.Items
	}
	return Order{Customer: o.Customer, Items: items}
}

// Cancel cancels an order, as often as it takes to get an answer, and reports
// whether it is cancelled; it is not if inventory had rejected it.
func (s *System) Cancel(o Order) bool {
	cancelled, err := s.client(new(int)).Cancel(s.t.Context(), 0, o.OrderID)
	if err != nil {
		s.complain(err)
	}
	if cancelled {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cancelled[o.OrderID] = true
	}
	return cancelled
}

// someOrderURL goes round the order processes.
func (s *System) someOrderURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.orders[s.next%len(s.orders)].URL()
}
