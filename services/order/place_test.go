package order

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/internal/clients"
	"example.com/baton/internal/provision"
	"example.com/baton/internal/proxy"
	"example.com/baton/internal/servers"
	"example.com/baton/internal/testenv"
	migrations "example.com/baton/migrations/order"
	"example.com/baton/shared/events"
)

// B102: the 201, a later GET and the event say the same time in the same words.
func TestPlace(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.post(t, baseOrder)
	if a.status != http.StatusCreated {
		t.Fatalf("got %d %s, want 201", a.status, a.body)
	}
	o := a.order(t)
	want := Order{
		OrderID: o.OrderID, EventID: o.EventID, Status: "created", CustomerID: "C10086",
		Amount: "199.00", Currency: "CNY", Items: []events.Item{{SKU: "SKU-1", Quantity: 2}},
		CreatedAt: o.CreatedAt, UpdatedAt: o.CreatedAt,
	}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if got, want := a.header.Get("Location"), "/orders/"+o.OrderID; got != want {
		t.Errorf("Location %q, want %q", got, want)
	}

	found := f.get(t, "/orders/"+o.OrderID)
	if diff := cmp.Diff(o, found.order(t)); diff != "" {
		t.Errorf("GET (-placed +got):\n%s", diff)
	}
	var payload string
	var sequence int64
	if err := f.db.QueryRow(t.Context(), `select payload::text, sequence from outbox_messages where event_id = $1`, o.EventID).Scan(&payload, &sequence); err != nil {
		t.Fatal(err)
	}
	e, err := events.Decode([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	wantEvent := events.Event{
		EventID: o.EventID, EventType: "order.created", OccurredAt: o.CreatedAt, OrderID: o.OrderID, Sequence: 1,
		CustomerID: "C10086", Amount: "199.00", Currency: "CNY", Items: o.Items,
	}
	if diff := cmp.Diff(wantEvent, e); diff != "" || sequence != 1 {
		t.Errorf("event, sequence %d (-want +got):\n%s", sequence, diff)
	}
	text := func(body, field string) string {
		_, rest, _ := strings.Cut(body, `"`+field+`":`)
		rest, _, _ = strings.Cut(strings.TrimSpace(rest), `Z"`)
		return rest
	}
	created := text(string(a.body), "createdAt")
	if got, event := text(string(found.body), "createdAt"), text(payload, "occurredAt"); created == "" || got != created || event != created {
		t.Errorf("createdAt is %s, in the GET %s and in the event %s, want one text", created, got, event)
	}
}

// B70: no cent is lost, in any form that means the same.
func TestAmountsAreExact(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, tt := range []struct{ amount, currency, want string }{
		{"1.15", "CNY", "1.15"},
		{"4.35", "CNY", "4.35"},
		{"0.29", "CNY", "0.29"},
		{"19.99", "CNY", "19.99"},
		{"199.00", "CNY", "199.00"},
		{"199", "CNY", "199.00"},
		{"199.0000", "CNY", "199.00"},
		{"1.99e2", "CNY", "199.00"},
		{"0.01", "USD", "0.01"},
		{"199", "JPY", "199"},
		{"199.00", "JPY", "199"},
		{"1.234", "KWD", "1.234"},
		{"1", "KWD", "1.000"},
		{"1.2345", "CLF", "1.2345"},
		{"1000000000000", "CNY", "1000000000000.00"},
	} {
		a := f.post(t, fmt.Sprintf(`{"customerId":"C","amount":%s,"currency":%q,"items":[{"sku":"SKU-1","quantity":3}]}`, tt.amount, tt.currency))
		if a.status != http.StatusCreated {
			t.Errorf("%s %s: %d %s, want 201", tt.amount, tt.currency, a.status, a.body)
			continue
		}
		o := a.order(t)
		var event string
		if err := f.db.QueryRow(t.Context(), `select payload->>'amount' from outbox_messages where event_id = $1`, o.EventID).Scan(&event); err != nil {
			t.Fatal(err)
		}
		got := []string{string(o.Amount), string(f.get(t, "/orders/"+o.OrderID).order(t).Amount), event}
		if diff := cmp.Diff([]string{tt.want, tt.want, tt.want}, got); diff != "" {
			t.Errorf("%s %s in answer, GET and event (-want +got):\n%s", tt.amount, tt.currency, diff)
		}
	}
}

// B79: twenty at once with one key are one order, whose answer each of them
// gets; so are twenty more one after another, and one after a restart.
func TestTwinsAreOneOrder(t *testing.T) {
	t.Parallel()
	database := migrated(t)
	f := serviceOn(t, database)
	const n = 20
	answers := make([]answered, n)
	var twins sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		twins.Go(func() {
			<-start
			answers[i] = f.post(t, baseOrder, "Idempotency-Key", "twins")
		})
	}
	close(start)
	twins.Wait()
	for range n {
		answers = append(answers, f.post(t, baseOrder, "Idempotency-Key", "twins"))
	}
	answers = append(answers, serviceOn(t, database).post(t, baseOrder, "Idempotency-Key", "twins"))

	first := answers[0]
	for i, a := range answers {
		if a.status != http.StatusCreated || string(a.body) != string(first.body) || a.header.Get("Location") != first.header.Get("Location") {
			t.Errorf("answer %d is %d %s, want 201 %s", i, a.status, a.body, first.body)
		}
	}
	f.wantOrders(t, 1)
	if got := f.get(t, "/orders/"+first.order(t).OrderID); got.status != http.StatusOK {
		t.Errorf("GET of that order: %d %s", got.status, got.body)
	}
}

// The first answer is kept as it was, whatever has become of the order.
func TestRepeatGivesFirstAnswer(t *testing.T) {
	t.Parallel()
	f := setup(t)
	first := f.post(t, baseOrder, "Idempotency-Key", "k")
	f.cancelOrder(t, first.order(t).OrderID)
	if again := f.post(t, baseOrder, "Idempotency-Key", "k"); string(again.body) != string(first.body) {
		t.Errorf("got %s, want %s", again.body, first.body)
	}
}

func TestKeyIsForOneRequest(t *testing.T) {
	t.Parallel()
	f := setup(t)
	first := f.post(t, baseOrder, "Idempotency-Key", "k").order(t)

	other := f.post(t, strings.Replace(baseOrder, "199.00", "200", 1), "Idempotency-Key", "k")
	if p := other.problem(t); other.status != http.StatusUnprocessableEntity || p.Type != typeKeyReused || !strings.Contains(p.Detail, first.OrderID) {
		t.Errorf("another body: %d %+v, want 422 that names %s", other.status, p, first.OrderID)
	}
	same := f.post(t, `{"items": [{"quantity":2, "sku":"SKU-1"}], "currency":"CNY", "amount":199, "customerId":"\u004310086"}`, "Idempotency-Key", "k")
	if same.status != http.StatusCreated || same.order(t).OrderID != first.OrderID {
		t.Errorf("the same in other words: %d %s, want 201 with %s", same.status, same.body, first.OrderID)
	}
	// An invalid request uses no key.
	if a := f.post(t, `{}`, "Idempotency-Key", "fresh"); a.status != http.StatusBadRequest {
		t.Errorf("invalid request: %d, want 400", a.status)
	}
	if a := f.post(t, baseOrder, "Idempotency-Key", "fresh"); a.status != http.StatusCreated {
		t.Errorf("the same key with a valid one: %d %s, want 201", a.status, a.body)
	}
	f.wantOrders(t, 2)
}

func TestWithoutKeyEachRequestIsAnOrder(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if a, b := f.placeOrder(t), f.placeOrder(t); a.OrderID == b.OrderID || a.EventID == b.EventID {
		t.Errorf("both are %s, %s", a.OrderID, a.EventID)
	}
	f.wantOrders(t, 2)
}

// B16: the commit went through and its answer was lost, so the service cannot
// know. It never says 201 then; sending the request again finds the order.
func TestCommitWithoutAnswer(t *testing.T) {
	t.Parallel()
	database := migrated(t)
	via, through := testenv.Proxy(t, database)
	f := serviceOn(t, through, func(c *Config) { c.RequestTimeout = 2 * time.Second })
	// A connection, its statements and a block of numbers are there from now on.
	t.Cleanup(func() { via.Cut() }) // or the pool waits for a goodbye
	f.placeOrder(t, "Idempotency-Key", "first")

	via.Freeze(proxy.ToClient)
	lost := f.post(t, baseOrder, "Idempotency-Key", "k")
	if p := lost.problem(t); lost.status != http.StatusServiceUnavailable || p.Type != typeUnknown || lost.header.Get("Retry-After") == "" {
		t.Fatalf("got %d %+v, want 503 that says so", lost.status, p)
	}
	healthy := serviceOn(t, database)
	healthy.wantOrders(t, 2) // it had been committed
	again := healthy.post(t, baseOrder, "Idempotency-Key", "k")
	if again.status != http.StatusCreated {
		t.Fatalf("again: %d %s, want 201", again.status, again.body)
	}
	healthy.wantOrders(t, 2)
	if got := healthy.get(t, "/orders/"+again.order(t).OrderID); got.status != http.StatusOK {
		t.Errorf("GET of the order: %d", got.status)
	}
}

// B16, the other way: the request never reached the database.
func TestRequestLostOnTheWay(t *testing.T) {
	t.Parallel()
	database := migrated(t)
	via, through := testenv.Proxy(t, database)
	f := serviceOn(t, through, func(c *Config) { c.RequestTimeout = 2 * time.Second })
	t.Cleanup(func() { via.Cut() }) // or the pool waits for a goodbye
	f.placeOrder(t, "Idempotency-Key", "first")

	via.Freeze(proxy.ToServer)
	if a := f.post(t, baseOrder, "Idempotency-Key", "k"); a.status != http.StatusServiceUnavailable {
		t.Fatalf("got %d %s, want 503", a.status, a.body)
	}
	healthy := serviceOn(t, database)
	healthy.wantOrders(t, 1)
	healthy.placeOrder(t, "Idempotency-Key", "k")
	healthy.wantOrders(t, 2)
}

// A commit may fail although every statement before it went well. It fails after
// the last result of the batch, where it is easily overlooked.
func TestCommitFails(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if _, err := f.db.Exec(t.Context(), `
		create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused at commit' using errcode = '53100'; end $$;
		create constraint trigger refuse after insert on orders deferrable initially deferred for each row execute function refuse()`); err != nil {
		t.Fatal(err)
	}
	for _, headers := range [][]string{nil, {"Idempotency-Key", "k"}} {
		a := f.post(t, baseOrder, headers...)
		if p := a.problem(t); a.status != http.StatusServiceUnavailable || p.Type != typeUnavailable {
			t.Errorf("got %d %s, want 503", a.status, a.body)
		}
	}
	f.wantOrders(t, 0)
	if n := f.count(t, `select count(*) from idempotency_keys`); n != 0 {
		t.Errorf("%d keys taken, want none", n)
	}
}

// B88: many requests and few connections: nobody hangs.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	f := serviceOn(t, migrated(t)+"&pool_max_conns=2", func(c *Config) { c.NumberBlock = 3 })
	const n = 50
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if a := f.post(t, baseOrder); a.status != http.StatusCreated {
				t.Errorf("got %d %s, want 201", a.status, a.body)
			}
		})
	}
	all.Wait()
	f.wantOrders(t, n)
}

// B88: the wait for a connection has an end.
func TestNoConnectionIs503(t *testing.T) {
	t.Parallel()
	f := serviceOn(t, migrated(t)+"&pool_max_conns=1", func(c *Config) { c.RequestTimeout = 200 * time.Millisecond })
	conn, err := f.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	start := time.Now()
	a := f.post(t, baseOrder)
	if p := a.problem(t); a.status != http.StatusServiceUnavailable || p.Type != typeUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, want 503 with Retry-After", a.status, a.body)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestNoDatabaseIs503(t *testing.T) {
	t.Parallel()
	f := serviceOn(t, "postgres://nobody@127.0.0.1:1/none")
	for _, a := range []answered{
		f.post(t, baseOrder), f.get(t, "/orders"), f.get(t, "/orders/ORD-20260715-000001"), f.cancelOrder(t, "ORD-20260715-000001"),
	} {
		if p := a.problem(t); a.status != http.StatusServiceUnavailable || p.Type != typeUnavailable {
			t.Errorf("got %d %s, want 503", a.status, a.body)
		}
	}
}

// B91: behind a pooler that hands out connections by transaction, without
// prepared statements.
func TestWithoutPreparedStatements(t *testing.T) {
	t.Parallel()
	f := serviceOn(t, migrated(t)+"&default_query_exec_mode=exec")
	o := f.placeOrder(t, "Idempotency-Key", "k")
	if again := f.placeOrder(t, "Idempotency-Key", "k"); again.OrderID != o.OrderID {
		t.Errorf("got %s, want %s", again.OrderID, o.OrderID)
	}
	if a := f.cancelOrder(t, o.OrderID); a.status != http.StatusOK {
		t.Errorf("cancel: %d %s", a.status, a.body)
	}
	if a := f.get(t, "/orders?status=cancelled"); !strings.Contains(string(a.body), o.OrderID) {
		t.Errorf("list: %d %s", a.status, a.body)
	}
	f.wantOrders(t, 1)
}

// One order is one round trip once its statements are prepared: key, order,
// event and stored answer together.
func TestOneRoundTrip(t *testing.T) {
	t.Parallel()
	via, through := testenv.Proxy(t, migrated(t))
	f := serviceOn(t, through+"&pool_max_conns=1")
	f.placeOrder(t, "Idempotency-Key", "first")
	for i := range 5 {
		before := via.Turns()
		f.placeOrder(t, "Idempotency-Key", fmt.Sprint("k", i))
		if n := via.Turns() - before; n != 1 {
			t.Errorf("order %d took %d round trips, want 1", i, n)
		}
	}
}

func TestCommittedStep(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var seen []string
	broken := false
	f.observe = func(_ context.Context, step string, ids []string) error {
		seen = append(seen, step+" "+strings.Join(ids, ","))
		if broken {
			return errors.New("injected")
		}
		return nil
	}
	o := f.placeOrder(t, "Idempotency-Key", "k")
	f.placeOrder(t, "Idempotency-Key", "k") // committed nothing
	if diff := cmp.Diff([]string{"order.committed " + o.EventID}, seen); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	broken = true
	if a := f.post(t, baseOrder); a.status != http.StatusInternalServerError || strings.Contains(string(a.body), "injected") {
		t.Errorf("with a failing step: %d %s, want 500 without internals", a.status, a.body)
	}
	f.wantOrders(t, 2) // committed it was
}

// B62: the trace of a request goes with its event, if it is one.
func TestTraceContextIsKept(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, tt := range []struct{ sent, want string }{
		{good, `{"traceparent": "` + good + `"}`},
		{"00-00000000000000000000000000000000-00f067aa0ba902b7-01", `{}`},
		{"ff" + good[2:], `{}`},
		{good + "x", `{}`},
		{strings.Repeat("a", 300), `{}`}, // nothing over-long reaches the broker
	} {
		o := f.placeOrder(t, "traceparent", tt.sent)
		var headers string
		if err := f.db.QueryRow(t.Context(), `select headers::text from outbox_messages where event_id = $1`, o.EventID).Scan(&headers); err != nil {
			t.Fatal(err)
		}
		if headers != tt.want {
			t.Errorf("traceparent %q: headers %s, want %s", tt.sent, headers, tt.want)
		}
	}
}

func TestPruneKeys(t *testing.T) {
	t.Parallel()
	f := setup(t, func(c *Config) { c.KeyKeep = time.Hour })
	f.placeOrder(t, "Idempotency-Key", "old")
	f.placeOrder(t, "Idempotency-Key", "new")
	if _, err := f.db.Exec(t.Context(), `update idempotency_keys set created_at = now() - interval '2 hours' where key = 'old'`); err != nil {
		t.Fatal(err)
	}
	if n, err := f.pruneKeys(t.Context()); n != 1 || err != nil {
		t.Errorf("pruned %d, %v, want 1", n, err)
	}
	if n := f.count(t, `select count(*) from idempotency_keys where key = 'new'`); n != 1 {
		t.Error("the new key is gone")
	}
	f.wantOrders(t, 2)
}

// B90: a migration under the running service costs a passing 503 at most.
func TestSchemaChangeUnderLoad(t *testing.T) {
	t.Parallel()
	f := serviceOn(t, migrated(t)+"&pool_max_conns=1")
	o := f.placeOrder(t, "Idempotency-Key", "k")
	requests := map[string]func() answered{
		"place":  func() answered { return f.post(t, baseOrder) },
		"again":  func() answered { return f.post(t, baseOrder, "Idempotency-Key", "k") },
		"get":    func() answered { return f.get(t, "/orders/"+o.OrderID) },
		"list":   func() answered { return f.get(t, "/orders") },
		"cancel": func() answered { return f.cancelOrder(t, o.OrderID) },
	}
	for _, request := range requests {
		request() // prepares its statements
	}
	for _, change := range []string{
		`alter table outbox_messages add column note text`,
		`alter table orders alter column customer_id type varchar(200)`,
		`alter table idempotency_keys alter column answer type varchar`,
	} {
		if _, err := f.db.Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		for name, request := range requests {
			first := request()
			if first.status >= 300 && first.status != http.StatusServiceUnavailable {
				t.Errorf("%s after %s: %d %s", name, change, first.status, first.body)
			}
			if second := request(); second.status >= 300 {
				t.Errorf("%s after %s, again: %d %s", name, change, second.status, second.body)
			}
		}
	}
}

// B94: the database is restarted twice, the second time by a crash, under
// clients that send again with their key until they have a 201.
func TestDatabaseRestart(t *testing.T) {
	t.Parallel()
	pg := testenv.OwnPostgres(t)
	database := pg.URL("postgres")
	if _, err := provision.Migrate(t.Context(), database, migrations.FS); err != nil {
		t.Fatal(err)
	}
	f := serviceOn(t, database)
	const senders, each = 4, 50
	var placed atomic.Int64
	ask := &clients.Client{
		URL:  func(int) string { return f.url },
		HTTP: &http.Client{Timeout: 30 * time.Second},
		After: func(r clients.Response) {
			if r.Status != http.StatusCreated && r.Status != http.StatusServiceUnavailable {
				t.Errorf("got %d %s, want 201, or 503 for a while", r.Status, r.Body)
			}
		},
	}
	t.Cleanup(ask.HTTP.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for c := range senders {
		all.Go(func() {
			for i := range each {
				if _, err := ask.Place(ctx, i, clients.Nth(fmt.Sprint(c), i)); err != nil {
					t.Error(err)
					return
				}
				placed.Add(1)
			}
		})
	}
	for i, mode := range []servers.RestartMode{servers.Fast, servers.Immediate} {
		testenv.Eventually(t, 30*time.Second, "orders", func() error {
			if n := placed.Load(); n < int64(i+1)*senders*each/4 {
				return fmt.Errorf("%d placed", n)
			}
			return nil
		})
		if err := pg.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	f.wantOrders(t, senders*each)
}
