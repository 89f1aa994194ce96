package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.com/baton/internal/clients"
	"example.com/baton/shared/events"
)

// load is clients that place orders at a steady rate, whether they are answered
// or not: each sends its order with an Idempotency-Key until it has an answer,
// to one process after the other. It keeps books of what clients were told.
type load struct {
	rate   int    // orders per second
	prefix string // of customers and keys
	ask    *clients.Client

	accepted atomic.Int64
	underWay sync.WaitGroup

	mu         sync.Mutex
	orders     map[string]receipt // by order id
	cancelled  map[string]bool    // by order id, of those that a client asked to cancel: the client was told it is
	unexpected []string           // answers that no client should get, the first few
	lastAnswer time.Time          // when an order was accepted last
	gap        time.Duration      // the longest time in which none was
	slowest    time.Duration      // the longest that a client had to wait for its 201
	repeated   int                // requests that had to be sent again
}

// receipt is what a client knows of its order.
type receipt struct {
	eventID  string
	customer string
	items    []events.Item
}

const (
	// A service answers within 5 seconds or so, if it answers. Who gives up before
	// has it work for nobody, and more of that the more it has to do.
	clientPatience = 6 * time.Second
	cancelEvery    = 20 // one of so many orders is cancelled
	rareEvery      = 50 // one of so many is for what is soon sold out
)

// newLoad is shared out among the order processes at urls.
func newLoad(urls []string, rate int, prefix string) *load {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 100
	l := &load{rate: rate, prefix: prefix, orders: make(map[string]receipt), cancelled: make(map[string]bool)}
	l.ask = &clients.Client{
		URL:   func(n int) string { return urls[n%len(urls)] },
		HTTP:  &http.Client{Transport: transport, Timeout: clientPatience},
		After: l.after,
	}
	return l
}

// run places orders until place is done, and returns when each has its answer or
// answer is done.
func (l *load) run(place, answer context.Context) {
	begin := time.Now()
	l.lastAnswer = begin
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for placed := 0; place.Err() == nil; {
		select {
		case <-place.Done():
		case <-tick.C:
			due := int(time.Since(begin).Seconds() * float64(l.rate))
			for n := placed; n < due; n++ {
				l.underWay.Go(func() { l.client(answer, n) })
			}
			placed = due
		}
	}
	l.underWay.Wait()
	l.ask.HTTP.CloseIdleConnections()
}

// client places one order, and cancels some of them.
func (l *load) client(ctx context.Context, n int) {
	o := clients.Nth(l.prefix, n)
	if n%rareEvery == 0 {
		o.Items = []events.Item{{SKU: "SKU-RARE", Quantity: 1}}
	}
	begin := time.Now()
	placed, err := l.ask.Place(ctx, n, o)
	if err != nil {
		l.failed(err)
		return
	}
	l.note(placed.OrderID, receipt{placed.EventID, o.Customer, o.Items}, time.Since(begin))
	if n%cancelEvery != 0 {
		return
	}
	select { // now and then the order is on its way already
	case <-time.After(time.Duration(n%7) * 50 * time.Millisecond):
	case <-ctx.Done():
		return
	}
	cancelled, err := l.ask.Cancel(ctx, n, placed.OrderID)
	if err != nil {
		l.failed(err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancelled[placed.OrderID] = cancelled
}

// failed notes an answer that no client should get. Otherwise the run is over.
func (l *load) failed(err error) {
	if errors.As(err, new(*clients.Unexpected)) {
		l.complain("%v", err)
	}
}

// after counts what has to be sent again.
func (l *load) after(r clients.Response) {
	if !r.Again {
		return
	}
	if r.Status != 0 && r.Status != http.StatusServiceUnavailable {
		l.complain("%d %.200s", r.Status, r.Body)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.repeated++
}

func (l *load) note(orderID string, r receipt, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, ok := l.orders[orderID]; ok {
		l.complainLocked("order %s was given to %s and to %s", orderID, other.customer, r.customer)
	}
	l.orders[orderID] = r
	l.accepted.Add(1)
	now := time.Now()
	l.gap, l.lastAnswer = max(l.gap, now.Sub(l.lastAnswer)), now
	l.slowest = max(l.slowest, took)
}

func (l *load) complain(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.complainLocked(format, args...)
}

func (l *load) complainLocked(format string, args ...any) {
	const most = 10
	if len(l.unexpected) < most {
		l.unexpected = append(l.unexpected, fmt.Sprintf(format, args...))
	}
}
