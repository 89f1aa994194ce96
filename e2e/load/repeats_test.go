package load

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/system"
)

const repeated = `{"customerId":"C10086","amount":199.00,"currency":"CNY","items":[{"sku":"SKU-1","quantity":2}]}`

// B79, in volume: a client that sends one request again and again has one order,
// one event and one stored answer, and gets that answer each time. Nothing in the
// database grows by it, and the last repeats are as fast as the first.
func TestRepeats(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order, _ := s.Start()
	wantAccepted(t, s, 50)
	const clients = 16
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}, Timeout: patience}
	t.Cleanup(c.CloseIdleConnections)
	first := repeat(t.Context(), c, order)
	if first.status != http.StatusCreated {
		t.Fatalf("the first: %d %s %v", first.status, first.body, first.err)
	}
	s.Settled()
	before := stored(t, s.OrderDB)

	n := many(2000, 20_000)
	took := make([]time.Duration, n)
	next := make(chan int)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for i := range next {
				start := time.Now()
				a := repeat(t.Context(), c, order)
				took[i] = time.Since(start)
				if a != first {
					t.Errorf("repeat %d: %d %s %v, want %d %s", i, a.status, a.body, a.err, first.status, first.body)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()

	if after := stored(t, s.OrderDB); after != before {
		t.Errorf("stored after %d repeats: %+v, before: %+v", n, after, before)
	}
	if n := answered(t, s.OrderDB, first); n != 1 {
		t.Errorf("%d orders with one event and one stored answer, want 1", n)
	}
	early, late := median(took[n/4:n/2]), median(took[n*3/4:])
	t.Logf("half of the repeats took up to %s in the second quarter, up to %s in the last", early, late)
	const slack = 50 * time.Millisecond // for what else this machine does
	if late > 2*early+slack {
		t.Errorf("half of the repeats took up to %s in the second quarter, and up to %s in the last", early, late)
	}
}

type repeatAnswer struct {
	status         int
	location, body string
	err            error
}

func repeat(ctx context.Context, c *http.Client, order *system.Process) repeatAnswer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, order.URL()+"/orders", strings.NewReader(repeated))
	if err != nil {
		return repeatAnswer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "again-and-again")
	res, err := c.Do(req)
	if err != nil {
		return repeatAnswer{err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return repeatAnswer{res.StatusCode, res.Header.Get("Location"), string(body), err}
}

// amounts are how much is stored in the tables that an order goes to.
type amounts struct{ Orders, Events, Keys, Bytes int64 }

const storedSQL = `
select (select count(*) from orders), (select count(*) from outbox_messages), (select count(*) from idempotency_keys),
  pg_total_relation_size('orders') + pg_total_relation_size('outbox_messages') + pg_total_relation_size('idempotency_keys')`

func stored(t *testing.T, db *pgxpool.Pool) (a amounts) {
	t.Helper()
	if err := db.QueryRow(t.Context(), storedSQL).Scan(&a.Orders, &a.Events, &a.Keys, &a.Bytes); err != nil {
		t.Fatal(err)
	}
	return a
}

const answeredSQL = `
select count(*) from idempotency_keys k join orders o using (order_id) join outbox_messages m on m.aggregate_id = o.order_id
where k.answer = $1`

func answered(t *testing.T, db *pgxpool.Pool, a repeatAnswer) (n int) {
	t.Helper()
	if err := db.QueryRow(t.Context(), answeredSQL, a.body).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// median sorts d.
func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
