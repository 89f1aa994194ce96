package order

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/testenv"
	migrations "example.com/baton/migrations/order"
	"example.com/baton/shared/events"
)

// Nothing that a test starts outlives it.
func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// running is a service as Run makes it.
type running struct {
	url  string
	log  *lockedBuffer
	stop func() error // asks it to stop and returns what Run did
}

// run starts a service on its own address and stops it at the end of the test.
func run(t *testing.T, change func(*Config)) *running {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{url: "http://" + ln.Addr().String(), log: &lockedBuffer{}}
	cfg := Config{
		Listener: ln,
		AMQPURL:  "amqp://nobody@127.0.0.1:1/",
		Logger:   slog.New(slog.NewJSONHandler(r.log, nil)),
	}
	change(&cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(25 * time.Second):
			return errors.New("did not stop in 25 s")
		}
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("run: %v", err)
		}
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

func (r *running) do(t *testing.T, method, path, body string, headers ...string) answered {
	t.Helper()
	return fixture{url: r.url}.do(t, method, path, body, headers...)
}

func (r *running) post(t *testing.T) answered {
	t.Helper()
	return fixture{url: r.url}.post(t, baseOrder)
}

// The whole way round, with a stand-in for inventory, as the users and roles of
// production: an order becomes a message, the answer to it changes the order, and
// a copy of the answer changes nothing.
func TestRun(t *testing.T) {
	t.Parallel()
	env := testenv.Shared(t)
	vhost := testenv.Vhost(t)
	auditor := testenv.VhostUser(t, vhost, provision.AuditUser)
	r := run(t, func(c *Config) {
		c.DatabaseURL = testenv.Migrated(t, migrations.FS).Service
		c.AMQPURL = testenv.VhostUser(t, vhost, provision.OrderUser)
		c.ManagementURL = env.ManagementURL(t, auditor)
		c.AuditEvery = 200 * time.Millisecond
	})

	ch := testenv.Channel(t, vhost)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// What inventory owns: its exchange, without which the consumer waits, and the
	// queue for the orders.
	must(ch.ExchangeDeclare(events.InventoryExchange, "topic", true, false, false, false, nil))
	must(ch.ExchangeDeclare(events.OrderExchange, "topic", true, false, false, false, nil))
	_, err := ch.QueueDeclare("inventory.order-events", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	must(err)
	must(ch.QueueBind("inventory.order-events", events.OrderCreated, events.OrderExchange, false, nil))
	must(ch.QueueBind("inventory.order-events", events.OrderCancelled, events.OrderExchange, false, nil))
	deliveries, err := ch.Consume("inventory.order-events", "", true, false, false, false, nil)
	must(err)

	testenv.Eventually(t, 30*time.Second, "ready in full", func() error {
		_, overall, checks := fixture{url: r.url}.ready(t)
		if overall != "ok" || checks["bindings"] != "ok" {
			return fmt.Errorf("%s: %v", overall, checks)
		}
		return nil
	})

	placed := r.post(t)
	if placed.status != http.StatusCreated {
		t.Fatalf("POST: %d %s", placed.status, placed.body)
	}
	o := placed.order(t)
	var d amqp.Delivery
	select {
	case d = <-deliveries:
	case <-time.After(20 * time.Second):
		t.Fatal("no message within 20 s")
	}
	if d.MessageId != o.EventID || d.Type != events.OrderCreated || d.AppId != "order" || d.DeliveryMode != amqp.Persistent {
		t.Errorf("message %s, type %s, app %s, mode %d, want %s, order.created, order, persistent", d.MessageId, d.Type, d.AppId, d.DeliveryMode, o.EventID)
	}
	if e, err := events.Decode(d.Body); err != nil || e.OrderID != o.OrderID {
		t.Errorf("body %s: %v", d.Body, err)
	}

	answer := answerTo(t, o.OrderID, events.InventoryReserved)
	for range 2 {
		must(ch.PublishWithContext(t.Context(), events.InventoryExchange, answer.Type, true, false, amqp.Publishing{
			MessageId: answer.MessageID, Type: answer.Type, Body: answer.Body, DeliveryMode: amqp.Persistent, ContentType: "application/json",
		}))
	}
	testenv.Eventually(t, 20*time.Second, "reserved", func() error {
		return testenv.Want(r.do(t, "GET", "/orders/"+o.OrderID, "").order(t).Status, "reserved")
	})
	testenv.Eventually(t, 20*time.Second, "published, and the copy absorbed", func() error {
		a := r.do(t, "GET", "/metrics", "")
		for _, line := range []string{`baton_relay_outcomes_total{outcome="published"} 1`, `baton_inbox_duplicates_total 1`, `baton_outbox_rows{status="Processing"} 0`} {
			if !bytes.Contains(a.body, []byte(line)) {
				return fmt.Errorf("no line %s", line)
			}
		}
		return nil
	})
	if a := r.do(t, "GET", "/orders/"+o.OrderID, ""); !bytes.Contains(a.body, []byte(`"status":"Published"`)) {
		t.Errorf("events of the order: %s", a.body)
	}
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// B103: the service starts before its schema is there, says so, and goes on by
// itself once it is.
func TestRunWaitsForSchema(t *testing.T) {
	t.Parallel()
	database := testenv.SchemaURL(t)
	r := run(t, func(c *Config) { c.DatabaseURL = database })
	if a := r.do(t, "GET", "/readyz", ""); a.status != http.StatusServiceUnavailable || !bytes.Contains(a.body, []byte("./baton migrate")) {
		t.Errorf("readyz: %d %s, want 503 that says what to run", a.status, a.body)
	}
	if _, err := provision.Migrate(t.Context(), database, migrations.FS); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "the database is ready", func() error {
		if !strings.Contains(r.log.String(), "database is ready") || !strings.Contains(r.log.String(), "relay started") {
			return errors.New(r.log.String())
		}
		return nil
	})
	// No broker at all: orders are taken.
	if a := r.post(t); a.status != http.StatusCreated {
		t.Errorf("POST without a broker: %d %s, want 201", a.status, a.body)
	}
	if a := r.do(t, "GET", "/readyz", ""); a.status != http.StatusOK || !bytes.Contains(a.body, []byte("degraded")) {
		t.Errorf("readyz without a broker: %d %s, want 200 degraded", a.status, a.body)
	}
}

// B110: a request in hand when the service is asked to stop gets its answer, new
// ones find a closed door.
func TestStopFinishesRequests(t *testing.T) {
	t.Parallel()
	database := testenv.Migrated(t, migrations.FS)
	r := run(t, func(c *Config) { c.DatabaseURL = database.Service })
	if a := r.post(t); a.status != http.StatusCreated {
		t.Fatalf("POST: %d %s", a.status, a.body)
	}
	db := testenv.Pool(t, database.Admin)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table orders in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	const n = 5
	answers := make([]answered, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { answers[i] = r.post(t) })
	}
	testenv.Eventually(t, 10*time.Second, "the requests wait for the table", func() error {
		var waiting int
		if err := db.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&waiting); err != nil {
			return err
		}
		if err := testenv.Want(waiting, storeTurns); err != nil { // the others wait for their turn
			return err
		}
		metrics := r.do(t, http.MethodGet, "/metrics", "").body
		return testenv.Want(strings.Contains(string(metrics), fmt.Sprintf("baton_http_requests_in_hand %d\n", n+1)), true)
	})

	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	addr := strings.TrimPrefix(r.url, "http://")
	testenv.Eventually(t, 10*time.Second, "the port is closed", func() error {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return nil
		}
		conn.Close()
		return errors.New("it still accepts")
	})
	select {
	case err := <-stopped:
		t.Fatalf("stopped with requests in hand: %v", err)
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	for _, a := range answers {
		if a.status != http.StatusCreated {
			t.Errorf("a request in hand: %d %s, want 201", a.status, a.body)
		}
	}
	if err := <-stopped; err != nil {
		t.Errorf("run: %v", err)
	}
	var orders int
	if err := db.QueryRow(t.Context(), `select count(*) from orders`).Scan(&orders); err != nil {
		t.Fatal(err)
	}
	if orders != n+1 {
		t.Errorf("%d orders stored, want %d", orders, n+1)
	}
}

// A stream of steps does not hold up a stop.
func TestStopEndsStreams(t *testing.T) {
	t.Parallel()
	database := migrated(t)
	r := run(t, func(c *Config) { c.DatabaseURL = database })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/steps", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	r.post(t)
	line := make([]byte, 3)
	if _, err := io.ReadFull(res.Body, line); err != nil {
		t.Fatalf("nothing on the stream: %v", err)
	}
	start := time.Now()
	if err := r.stop(); err != nil || time.Since(start) > 5*time.Second {
		t.Errorf("stopped after %s: %v", time.Since(start), err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Errorf("the stream ended with %v, want its end", err)
	}
}

func TestRunRefusesBadConfig(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	good := Config{HTTPAddr: "127.0.0.1:0", DatabaseURL: "postgres://u:S3cr3tDb@127.0.0.1:1/x", AMQPURL: "amqp://u:S3cr3tBroker@127.0.0.1:1/"}
	for name, tt := range map[string]struct {
		change func(*Config)
		names  string
	}{
		"no database":        {func(c *Config) { c.DatabaseURL = "" }, "ORDER_DATABASE_URL"},
		"bad database":       {func(c *Config) { c.DatabaseURL = "postgres://u:S3cr3tDb@127.0.0.1:x/ y" }, "ORDER_DATABASE_URL"},
		"no broker":          {func(c *Config) { c.AMQPURL = "" }, "ORDER_AMQP_URL"},
		"bad broker":         {func(c *Config) { c.AMQPURL = "http://u:S3cr3tBroker@127.0.0.1" }, "ORDER_AMQP_URL"},
		"unparseable broker": {func(c *Config) { c.AMQPURL = "amqp://u:S3cr3tBroker@ 127.0.0.1:5672/" }, "ORDER_AMQP_URL"},
		"bad management":     {func(c *Config) { c.ManagementURL = "u:S3cr3tBroker" }, "BATON_MANAGEMENT_URL"},
		"queue type":         {func(c *Config) { c.QueueType = "stream" }, "QUEUE_TYPE"},
		"negative TTL":       {func(c *Config) { c.RetryTTL = -time.Second }, "BATON_RETRY_TTL"},
		"negative batch":     {func(c *Config) { c.Batch = -1 }, "BATON_BATCH"},
		"retention":          {func(c *Config) { c.InboxKeep = time.Hour }, "BATON_INBOX_KEEP"},
		"faults for all":     {func(c *Config) { c.Faults, c.HTTPAddr = true, "0.0.0.0:0" }, "BATON_FAULTS"},
		"port taken":         {func(c *Config) { c.HTTPAddr = taken.Addr().String() }, "ORDER_HTTP"},
		"no such host":       {func(c *Config) { c.HTTPAddr = "256.0.0.1:80" }, "ORDER_HTTP"},
	} {
		cfg := good
		tt.change(&cfg)
		err := Run(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), tt.names) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "S3cr3t") {
			t.Errorf("%s: %v, want one line that names %s and no password", name, err, tt.names)
		}
	}
}

// Faults are there when asked for, and then what they do is seen by the API.
func TestFaults(t *testing.T) {
	t.Parallel()
	database := migrated(t)
	r := run(t, func(c *Config) { c.DatabaseURL, c.Faults = database, true })
	res, err := http.Post(r.url+"/faults", "application/json", strings.NewReader(`{"step":"order.committed","action":"error"}`))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		t.Fatalf("POST /faults: %d", res.StatusCode)
	}
	if a := r.post(t); a.status != http.StatusInternalServerError {
		t.Errorf("POST: %d %s, want 500", a.status, a.body)
	}
	if a := r.post(t); a.status != http.StatusCreated {
		t.Errorf("POST after the fault: %d %s, want 201", a.status, a.body)
	}
}
