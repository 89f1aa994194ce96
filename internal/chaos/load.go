package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.com/baton/shared/events"
)

// load is clients that place orders at a steady rate, whether they are answered
// or not: each sends its order with an Idempotency-Key until it has an answer,
// to one process after the other. It keeps books of what clients were told.
type load struct {
	urls   []string // of the order processes, shared out and tried in turn
	rate   int      // orders per second
	prefix string   // of customers and keys
	http   *http.Client

	accepted atomic.Int64
	clients  sync.WaitGroup

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
	mostPause      = 2 * time.Second
	cancelEvery    = 20 // one of so many orders is cancelled
	rareEvery      = 50 // one of so many is for what is soon sold out
)

func newLoad(urls []string, rate int, prefix string) *load {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 100
	return &load{
		urls: urls, rate: rate, prefix: prefix,
		http:   &http.Client{Transport: transport, Timeout: clientPatience},
		orders: make(map[string]receipt), cancelled: make(map[string]bool),
	}
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
				l.clients.Go(func() { l.client(answer, n) })
			}
			placed = due
		}
	}
	l.clients.Wait()
	l.http.CloseIdleConnections()
}

// client places one order, and cancels some of them.
func (l *load) client(ctx context.Context, n int) {
	r := receipt{customer: fmt.Sprintf("%s-%d", l.prefix, n), items: []events.Item{{SKU: fmt.Sprintf("SKU-%d", n%10+1), Quantity: int64(n%3 + 1)}}}
	if n%2 == 0 {
		r.items = append(r.items, events.Item{SKU: fmt.Sprintf("SKU-%d", n%7+1), Quantity: 1})
	}
	if n%rareEvery == 0 {
		r.items = []events.Item{{SKU: "SKU-RARE", Quantity: 1}}
	}
	body, err := json.Marshal(map[string]any{"customerId": r.customer, "amount": 199.5, "currency": "CNY", "items": r.items})
	if err != nil {
		l.complain("write an order: %v", err)
		return
	}
	begin := time.Now()
	status, answer := l.until(ctx, n, "/orders", body, r.customer)
	if status == 0 {
		return
	}
	var placed struct{ OrderID, EventID string }
	if err := json.Unmarshal(answer, &placed); err != nil || status != http.StatusCreated || placed.OrderID == "" || placed.EventID == "" {
		l.complain("the answer to an order is %d %.200s", status, answer)
		return
	}
	r.eventID = placed.EventID
	l.note(placed.OrderID, r, time.Since(begin))
	if n%cancelEvery != 0 {
		return
	}
	select { // now and then the order is on its way already
	case <-time.After(time.Duration(n%7) * 50 * time.Millisecond):
	case <-ctx.Done():
		return
	}
	status, answer = l.until(ctx, n, "/orders/"+placed.OrderID+"/cancel", nil, "")
	switch status {
	case 0:
	case http.StatusOK, http.StatusConflict: // inventory had rejected it
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cancelled[placed.OrderID] = status == http.StatusOK
	default:
		l.complain("the answer to a cancellation is %d %.200s", status, answer)
	}
}

// until sends a request until its answer tells something, to one process after
// the other from the one at turn on, and returns status 0 if ctx is done before.
func (l *load) until(ctx context.Context, turn int, path string, body []byte, key string) (status int, answer []byte) {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, mostPause) {
		turn++
		status, answer, err := l.ask(ctx, l.urls[turn%len(l.urls)]+path, body, key)
		if err == nil && status < http.StatusInternalServerError {
			return status, answer
		}
		if err == nil && status != http.StatusServiceUnavailable {
			l.complain("%s: %d %.200s", path, status, answer) // and go on: clients do
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)): // or all come back at once
		case <-ctx.Done():
			return 0, nil
		}
		l.mu.Lock()
		l.repeated++
		l.mu.Unlock()
	}
}

func (l *load) ask(ctx context.Context, url string, body []byte, key string) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if key != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := l.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
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
