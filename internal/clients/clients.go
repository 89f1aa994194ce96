// Package clients is what a correct client of the order service does, for whoever
// puts load on it: each order has an Idempotency-Key, and is sent again with the
// same key, to one process after the other, until there is an answer.
package clients

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"example.com/baton/shared/events"
)

// Client sends requests to order processes. It may be used by many goroutines.
type Client struct {
	// URL is the address to ask at the nth turn.
	URL func(n int) string
	// HTTP is with what; its Timeout is for one answer. Required: more than the
	// service's own 5 seconds, or what it does for a request is for nobody.
	HTTP *http.Client
	// MostPause bounds the pauses before a request is sent again, which double from
	// 20 ms on, give or take a half. Defaults to 2 seconds.
	MostPause time.Duration
	// After, when set, is called after each request.
	After func(Response)
}

// Response is what became of one request.
type Response struct {
	Status int // 0 without an answer
	Body   []byte
	Took   time.Duration
	// Again says that the request will be sent again, because it had no answer or
	// the service could not do it: 503, or any other status from 500 on, which no
	// client should get.
	Again bool
}

// Order is what a client asks for.
type Order struct {
	Customer string // its Idempotency-Key too
	Items    []events.Item
}

// Nth is the order number n of a load: one to three of one or two of the skus that
// are plenty. The customer is prefix and n.
func Nth(prefix string, n int) Order {
	items := []events.Item{{SKU: fmt.Sprintf("SKU-%d", n%10+1), Quantity: int64(n%3 + 1)}}
	if n%2 == 0 {
		items = append(items, events.Item{SKU: fmt.Sprintf("SKU-%d", n%7+1), Quantity: 1})
	}
	return Order{fmt.Sprintf("%s-%d", prefix, n), items}
}

// Placed is what a client is told of its order.
type Placed struct{ OrderID, EventID string }

// Unexpected is an answer that a correct client does not get.
type Unexpected struct {
	Path   string
	Status int
	Body   []byte
}

func (e *Unexpected) Error() string { return fmt.Sprintf("%s: %d %.200s", e.Path, e.Status, e.Body) }

// Place sends an order until it is accepted, from the nth turn on. The error is
// that of ctx if that is done before, or *[Unexpected].
func (c *Client) Place(ctx context.Context, n int, o Order) (Placed, error) {
	body, err := json.Marshal(map[string]any{"customerId": o.Customer, "amount": 199.5, "currency": "CNY", "items": o.Items})
	if err != nil {
		return Placed{}, err
	}
	const path = "/orders"
	r, err := c.until(ctx, n, path, body, o.Customer)
	if err != nil {
		return Placed{}, err
	}
	var placed Placed
	if err := json.Unmarshal(r.Body, &placed); err != nil || r.Status != http.StatusCreated || placed.OrderID == "" || placed.EventID == "" {
		return Placed{}, &Unexpected{path, r.Status, r.Body}
	}
	return placed, nil
}

// Cancel cancels an order, as often as it takes to get an answer, and reports
// whether it is cancelled; it is not if inventory had rejected it. Errors are
// those of Place.
func (c *Client) Cancel(ctx context.Context, n int, orderID string) (cancelled bool, err error) {
	path := "/orders/" + orderID + "/cancel"
	r, err := c.until(ctx, n, path, nil, "")
	switch {
	case err != nil:
		return false, err
	case r.Status != http.StatusOK && r.Status != http.StatusConflict:
		return false, &Unexpected{path, r.Status, r.Body}
	}
	return r.Status == http.StatusOK, nil
}

// until sends a request until its answer tells something.
func (c *Client) until(ctx context.Context, turn int, path string, body []byte, key string) (Response, error) {
	longest := cmp.Or(c.MostPause, 2*time.Second)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, longest) {
		r, err := c.ask(ctx, c.URL(turn)+path, body, key)
		if err != nil {
			return r, err
		}
		if c.After != nil {
			c.After(r)
		}
		if !r.Again {
			return r, nil
		}
		turn++
		select {
		case <-time.After(pause/2 + rand.N(pause)): // or all come back at once
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}

// ask sends a request once. An error is the end of ctx, or a request that cannot
// be sent at all.
func (c *Client) ask(ctx context.Context, url string, body []byte, key string) (r Response, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	if key != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
	}
	begin := time.Now()
	resp, err := c.HTTP.Do(req)
	if err == nil {
		defer resp.Body.Close()
		if r.Body, err = io.ReadAll(resp.Body); err == nil {
			r.Status = resp.StatusCode
		}
	}
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	r.Took = time.Since(begin)
	r.Again = r.Status == 0 || r.Status >= http.StatusInternalServerError
	return r, nil
}
