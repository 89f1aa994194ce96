package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/baton/internal/clients"
	"example.com/baton/internal/samples"
	"example.com/baton/shared/events"
)

// body is the request for an order like those of Samples.
func body(n int) []byte {
	data, err := json.Marshal(map[string]any{
		"customerId": "C10086", "amount": 199.00, "currency": "CNY",
		"items": []events.Item{{SKU: fmt.Sprintf("SKU-B%d", n%samples.SKUs), Quantity: 2}},
	})
	if err != nil {
		panic(err) // it is ours
	}
	return data
}

// post places orders on so many connections, spread over addrs, each as soon as
// the last is answered, for a time, and returns how many a second were accepted.
// The clients share the machine with what they measure, so they do as little as
// they can: a request is written and an answer is read, without a client library.
func post(ctx context.Context, addrs []string, connections int, lasting time.Duration, prefix string) (perSecond float64, err error) {
	bodies := make([][]byte, samples.SKUs)
	for i := range bodies {
		bodies[i] = body(i)
	}
	var mu sync.Mutex
	total := 0
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for c := range connections {
		g.Go(func() error {
			addr := addrs[c%len(addrs)]
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			defer conn.Close()
			in := bufio.NewReader(conn)
			n := 0
			for ; time.Since(begin) < lasting && ctx.Err() == nil; n++ {
				body := bodies[(c+n*connections)%samples.SKUs]
				_, err := fmt.Fprintf(conn, "POST /orders HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nIdempotency-Key: %s-%d-%d\r\nContent-Length: %d\r\n\r\n%s",
					addr, prefix, c, n, len(body), body)
				if err != nil {
					return err
				}
				answer, err := http.ReadResponse(in, nil)
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, answer.Body)
				if err = errors.Join(err, answer.Body.Close()); err != nil {
					return err
				}
				if answer.StatusCode != http.StatusCreated {
					return fmt.Errorf("POST /orders: %s", answer.Status)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return float64(total) / time.Since(begin).Seconds(), nil
}

// placed is an order that was accepted.
type placed struct {
	eventID  string
	due      time.Time // when its request was to be sent
	answered time.Time
}

// atRate places orders at a steady rate, whether or not those before are
// answered, for a time. All times count from when a request was due: what waits
// for a slow answer is slow too, and that is seen (no coordinated omission).
func atRate(ctx context.Context, url string, rate int, lasting time.Duration, prefix string) ([]placed, error) {
	// So many that one is always free, and each with a connection of its own.
	const senders = 64
	n := int(lasting.Seconds() * float64(rate))
	orders := make([]placed, n)
	next := make(chan int, n)
	g, ctx := errgroup.WithContext(ctx)
	for range senders {
		g.Go(func() error {
			client := &clients.Client{
				URL:  func(int) string { return url },
				HTTP: &http.Client{Transport: &http.Transport{}, Timeout: 15 * time.Second},
			}
			defer client.HTTP.CloseIdleConnections()
			for i := range next {
				got, err := client.Place(ctx, i, clients.Order{
					Customer: fmt.Sprintf("%s-%d", prefix, i),
					Items:    []events.Item{{SKU: fmt.Sprintf("SKU-B%d", i%samples.SKUs), Quantity: 2}},
				})
				if err != nil {
					return err
				}
				orders[i].eventID, orders[i].answered = got.EventID, time.Now()
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(next)
		begin := time.Now().Add(100 * time.Millisecond)
		for i := range n {
			orders[i].due = begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
			select {
			case <-time.After(time.Until(orders[i].due)):
				next <- i
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return orders, g.Wait()
}
