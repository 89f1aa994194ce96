package inventory

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/testenv"
	migrations "example.com/baton/migrations/inventory"
	"example.com/baton/shared/events"
	"example.com/baton/shared/inbox"
	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// start runs the service until the test ends, which it has to do without an
// error and in time, or until stop is called.
func start(t *testing.T, cfg Config) (base string, stop func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener, cfg.Logger = ln, testenv.Logger(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run did not end within 20 s")
		}
	}
	t.Cleanup(stop)
	return "http://" + ln.Addr().String(), stop
}

// broker is a vhost with what the order service brings into it.
func broker(t *testing.T) (ch *amqp.Channel, adminURL, serviceURL string) {
	t.Helper()
	adminURL = testenv.Vhost(t)
	ch = testenv.Channel(t, adminURL)
	for _, exchange := range []string{events.OrderExchange, events.InventoryExchange} {
		if err := ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	queue, err := ch.QueueDeclare("order.inventory-events", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(queue.Name, "inventory.*", events.InventoryExchange, false, nil); err != nil {
		t.Fatal(err)
	}
	return ch, adminURL, testenv.VhostUser(t, adminURL, provision.InventoryUser)
}

func withParam(t *testing.T, address, key, value string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set(key, value)
	u.RawQuery = query.Encode()
	return u.String()
}

func publish(t *testing.T, ch *amqp.Channel, d rabbit.Delivery) {
	t.Helper()
	err := ch.PublishWithContext(t.Context(), events.OrderExchange, d.Type, true, false, amqp.Publishing{
		MessageId: d.MessageID, Type: d.Type, Body: d.Body, DeliveryMode: amqp.Persistent,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func eventuallyReady(t *testing.T, base string) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, "ready", func() error {
		status, _, body := ask(t, http.MethodGet, base+"/readyz")
		if status != http.StatusOK {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
}

// The whole service, with the rights that it has in production: an order comes
// in by the broker, and its answer goes out. (B88)
func TestRun(t *testing.T) {
	t.Parallel()
	db := testenv.Migrated(t, migrations.FS)
	ch, adminURL, serviceURL := broker(t)
	// Two connections are enough; nothing takes a second one while it holds one.
	base, stop := start(t, Config{DatabaseURL: withParam(t, db.Service, "pool_max_conns", "2"), AMQPURL: serviceURL})
	eventuallyReady(t, base)

	create := created("ORD-1", "SKU-1×2")
	unreadable := created("ORD-2", "SKU-1×2")
	unreadable.Body = []byte("{")
	publish(t, ch, create)
	publish(t, ch, unreadable)
	publish(t, ch, create)
	publish(t, ch, created("ORD-3", "SKU-RARE×11"))

	answers := make(map[string]events.Event)
	testenv.Eventually(t, 20*time.Second, "two answers", func() error {
		msg, ok, err := ch.Get("order.inventory-events", true)
		if err != nil {
			return err
		}
		if ok {
			e, err := events.Decode(msg.Body)
			if err != nil || msg.MessageId != e.EventID || msg.Type != e.EventType || msg.DeliveryMode != amqp.Persistent {
				t.Fatalf("answer %s %s %s (%v)", msg.MessageId, msg.Type, msg.Body, err)
			}
			answers[e.OrderID] = e
		}
		return testenv.Want(len(answers), 2)
	})
	if got := answers["ORD-1"].EventType; got != events.InventoryReserved {
		t.Errorf("ORD-1: %s, want reserved", got)
	}
	if got := answers["ORD-3"].Reason; got != "out of stock: SKU-RARE" {
		t.Errorf("ORD-3: reason %q, want that SKU-RARE is out of stock", got)
	}
	testenv.Eventually(t, 20*time.Second, "the unreadable one in the final queue", func() error {
		n, err := testenv.QueueDepth(adminURL, "inventory.order-events.dlq")
		if err != nil {
			return err
		}
		return testenv.Want(n, 1)
	})

	if got := get(t, base+"/stock/SKU-1")["reserved"]; got != 2.0 {
		t.Errorf("%v of SKU-1 reserved, want 2", got)
	}
	testenv.Eventually(t, 10*time.Second, "metrics", func() error {
		_, _, body := ask(t, http.MethodGet, base+"/metrics")
		for _, line := range []string{
			`baton_inventory_events_total{outcome="reserved"} 1`,
			`baton_inventory_events_total{outcome="rejected"} 1`,
			`baton_inbox_duplicates_total 1`,
			`baton_relay_outcomes_total{outcome="published"} 2`,
			`baton_consumer_dead_lettered_total 1`,
			`baton_outbox_rows{status="Pending"} 0`,
		} {
			if !strings.Contains(body, "\n"+line+"\n") {
				return fmt.Errorf("no line %s", line)
			}
		}
		return nil
	})
	stop()
	if _, err := http.Get(base + "/livez"); err == nil {
		t.Error("the port is still open after Run has returned")
	}
}

// Without anything it needs the service waits, says so, and gives away no
// password (B103, B108).
func TestRunWithoutSurroundings(t *testing.T) {
	t.Parallel()
	base, stop := start(t, Config{
		DatabaseURL: "postgres://u:S3cr3tDb@127.0.0.1:1/x", AMQPURL: "amqp://u:S3cr3tBroker@127.0.0.1:1/",
		ManagementURL: "http://u:S3cr3tAudit@127.0.0.1:1",
	})
	for path, want := range map[string]int{"/livez": 200, "/readyz": 503, "/stock": 503, "/metrics": 200} {
		status, _, body := ask(t, http.MethodGet, base+path)
		if status != want || strings.Contains(body, "S3cr3t") {
			t.Errorf("%s: %d %s, want %d and no password", path, status, body, want)
		}
	}
	stop()
}

// A schema that is not there yet is waited for.
func TestRunWaitsForMigrations(t *testing.T) {
	t.Parallel()
	db := testenv.Shared(t).Provisioned(t)
	_, _, serviceURL := broker(t)
	base, _ := start(t, Config{DatabaseURL: db.Service, AMQPURL: serviceURL})
	testenv.Eventually(t, 10*time.Second, "what to run in /readyz", func() error {
		status, _, body := ask(t, http.MethodGet, base+"/readyz")
		if status != http.StatusServiceUnavailable || !strings.Contains(body, "./baton migrate") {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	if _, err := provision.Migrate(t.Context(), db.Owner, migrations.FS); err != nil {
		t.Fatal(err)
	}
	eventuallyReady(t, base)
}

// A fault armed over HTTP is felt by the consumer.
func TestFaults(t *testing.T) {
	t.Parallel()
	db := testenv.Migrated(t, migrations.FS)
	ch, _, serviceURL := broker(t)
	base, _ := start(t, Config{DatabaseURL: db.Service, AMQPURL: serviceURL, QueueType: "classic", Faults: true})
	eventuallyReady(t, base)
	res, err := http.Post(base+"/faults", "application/json", strings.NewReader(`{"step":"consumer.committed","action":"error"}`))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	publish(t, ch, created("ORD-1", "SKU-1×2"))
	testenv.Eventually(t, 30*time.Second, "the delivery again, as a duplicate", func() error {
		_, _, body := ask(t, http.MethodGet, base+"/metrics")
		if !strings.Contains(body, "\nbaton_inbox_duplicates_total 1\n") || !strings.Contains(body, "\nbaton_consumer_acked_total 1\n") {
			return fmt.Errorf("not yet absorbed")
		}
		return nil
	})
	if got := get(t, base+"/stock/SKU-1")["reserved"]; got != 2.0 {
		t.Errorf("%v of SKU-1 reserved, want 2", got)
	}
}

// The libraries say what their tables are: each paragraph of theirs is in a
// migration.
func TestSchemaIsThatOfTheLibraries(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range files {
		text, err := migrations.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for name, schema := range map[string]string{"outbox": outbox.Schema, "inbox": inbox.Schema} {
		for paragraph := range strings.SplitSeq(schema, "\n\n") {
			if !strings.Contains(all.String(), strings.TrimSpace(paragraph)+"\n") {
				t.Errorf("no migration has this of shared/%s as it is:\n%s", name, paragraph)
			}
		}
	}
}
