package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"
)

// walk shows one order's way through the services.
type walk struct {
	order, inventory string // base URLs
	out              io.Writer
	orderID          string
}

const exampleOrder = `{"customerId":"C10086","amount":199.00,"currency":"CNY","items":[{"sku":"SKU-1","quantity":2}]}`

// step is one line of an order's timeline.
type step struct {
	Service string    `json:"service"`
	At      time.Time `json:"at"`
	Step    string    `json:"step"`
	EventID string    `json:"eventId"`
	Detail  string    `json:"detail"`
}

// byTime puts the steps of both services together. Those of one time stay in
// their order.
func byTime(order, inventory []step) []step {
	steps := slices.Concat(order, inventory)
	slices.SortStableFunc(steps, func(a, b step) int { return a.At.Compare(b.At) })
	return steps
}

// placeOne places an order, waits for the answer of inventory and prints the
// order's timeline.
func (w *walk) placeOne(ctx context.Context) error {
	w.settle(ctx)
	var placed struct {
		OrderID string `json:"orderId"`
		EventID string `json:"eventId"`
	}
	if err := call(ctx, http.MethodPost, w.order+"/orders", exampleOrder, &placed); err != nil {
		return fmt.Errorf("place an order: %w", err)
	}
	w.orderID = placed.OrderID
	status, err := w.outcome(ctx)
	if err != nil {
		return fmt.Errorf("follow order %s: %w", w.orderID, err)
	}
	steps, err := w.timeline(ctx)
	if err != nil {
		return fmt.Errorf("read the timeline of order %s: %w", w.orderID, err)
	}

	fmt.Fprintf(w.out, "\nOrder %s went from POST /orders to %s, by event %s:\n\n", w.orderID, status, placed.EventID)
	table := tabwriter.NewWriter(w.out, 0, 0, 2, ' ', 0)
	for _, s := range steps {
		after := s.At.Sub(steps[0].At)
		if s.EventID != placed.EventID { // the answer is an event of its own, caused by this one
			s.Detail = "answer " + s.EventID + ": " + s.Detail
		}
		fmt.Fprintf(table, "  %6.1f ms\t%s\t%s\t%s\t%s\n", float64(after.Microseconds())/1000, s.Service, s.Step, placed.EventID, s.Detail)
	}
	return table.Flush()
}

// settle gives the services a moment to find each other: while one of them has
// not declared its queue yet, an order would go a longer way than usual. If they
// still complain then, that is what the order will show.
func (w *walk) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, base := range []string{w.inventory, w.order} {
		for {
			var ready struct{ Status string }
			if err := call(ctx, http.MethodGet, base+"/readyz", "", &ready); err == nil && ready.Status != "degraded" {
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

// timeline is what the rows of both services know of the order, by time.
func (w *walk) timeline(ctx context.Context) ([]step, error) {
	var both [2][]step
	for i, s := range []struct{ name, url string }{{"order", w.order}, {"inventory", w.inventory}} {
		var timeline struct{ Steps []step }
		if err := call(ctx, http.MethodGet, s.url+"/timeline/"+w.orderID, "", &timeline); err != nil {
			return nil, err
		}
		for n := range timeline.Steps {
			timeline.Steps[n].Service = s.name
		}
		both[i] = timeline.Steps
	}
	return byTime(both[0], both[1]), nil
}

// outcome waits until the order is no longer just created.
func (w *walk) outcome(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("still created after 30 s; see the services' /readyz and logs"))
	defer cancel()
	for {
		var order struct {
			Status string `json:"status"`
		}
		if err := call(ctx, http.MethodGet, w.order+"/orders/"+w.orderID, "", &order); err != nil {
			return "", err
		}
		if order.Status != "created" {
			return order.Status, nil
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// call sends a request and decodes the answer.
func call(ctx context.Context, method, url, body string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, data)
	}
	return json.Unmarshal(data, answer)
}

// whatNow prints where everything is and what to try; check is the command that
// looks whether anything is lost or done twice, flag what up and reset need to mean
// this Baton.
func (w *walk) whatNow(check, flag string, more ...string) {
	fmt.Fprintf(w.out, "\norder      %s  API, /openapi.yaml, /metrics, /readyz\ninventory  %s  /stock, /reservations/{orderId}\n", w.order, w.inventory)
	for _, line := range more {
		fmt.Fprintln(w.out, line)
	}
	fmt.Fprintf(w.out, `
Try:
  curl -s %[1]s/orders -H 'Content-Type: application/json' -d '%[3]s'
  curl -s %[1]s/timeline/%[4]s
  curl -s %[2]s/stock
  %[5]s

Ctrl-C stops everything; ./baton up%[6]s goes on with the same data, ./baton reset%[6]s removes it.
`, w.order, w.inventory, exampleOrder, w.orderID, check, flag)
}
