package outage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/internal/servers"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// What takes a whole server down has a pair of its own, one for several tests,
// since a broker takes its time to start. (B11, B28, B94, B103, B108)
func TestServers(t *testing.T) {
	t.Parallel()
	own := testenv.OwnServers(t)
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, own *testenv.Servers)
	}{
		{"broker restarts", brokerRestarts},
		{"broker stopped", brokerStopped},
		{"memory alarm", memoryAlarm},
		{"database restarts", databaseRestarts},
		{"services start first", servicesStartFirst},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, own) })
	}
}

// What the broker does to messages that wait, and to those that take long, on a
// pair of its own beside that of TestServers. (B26, B34, B35)
func TestBroker(t *testing.T) {
	t.Parallel()
	own := testenv.OwnServers(t)
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, own *testenv.Servers)
	}{
		{"restarts with messages", messagesSurvive},
		{"restarts under slow handlers", slowHandlers},
		{"loses patience", consumerTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, own) })
	}
}

// The whole node restarts in order, under load.
func brokerRestarts(t *testing.T, own *testenv.Servers) {
	w := begin(t, setup{servers: &own.Env})
	stop := watch(t, w.orders[0])
	w.under(func() {
		if err := own.Broker.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	w.recovered()
	wantTakingOrders(t, w, stop())
}

// Messages that wait in a queue are there after a restart of the broker, on
// classic queues too: they are persistent, and exchange and queue durable. (B26)
func messagesSurvive(t *testing.T, own *testenv.Servers) {
	all := make(map[string]*system.System)
	inventories := make(map[string]*system.Process)
	for _, queues := range []string{"quorum", "classic"} {
		s := system.New(t, system.Options{Servers: &own.Env, Env: []string{"QUEUE_TYPE=" + queues}})
		_, inventory := s.Start()
		inventory.Stop()
		s.Place(20)
		testenv.Eventually(t, time.Minute, "all are with the broker", func() error {
			now, err := stand(t, s, "")
			return errors.Join(err, testenv.Want(now, standing{Published: 20}))
		})
		all[queues], inventories[queues] = s, inventory
	}
	for what, restart := range map[string]func() error{
		"the node": func() error { return own.Broker.Restart(t.Context()) },
		"the broker in the node": func() error {
			_, stopped := own.Broker.Ctl(t.Context(), "stop_app")
			_, started := own.Broker.Ctl(t.Context(), "start_app")
			return errors.Join(stopped, started)
		},
	} {
		if err := restart(); err != nil {
			t.Fatalf("restart %s: %v", what, err)
		}
		for queues, s := range all {
			testenv.Eventually(t, time.Minute, "the "+queues+" queue after a restart of "+what, func() error {
				depth, err := testenv.QueueDepth(s.Vhost, system.InventoryQueue)
				return errors.Join(err, testenv.Want(depth, 20))
			})
		}
	}
	for queues, s := range all {
		inventories[queues].Restart()
		s.Settled()
		s.Exact()
	}
}

// The broker's application restarts again and again while each delivery takes
// its time, because somebody holds the row that it needs. The consumer never
// hangs. (B34)
func slowHandlers(t *testing.T, own *testenv.Servers) {
	w := begin(t, setup{servers: &own.Env, processes: 1})
	slow, stop := context.WithCancel(t.Context())
	var holding sync.WaitGroup
	holding.Go(func() {
		for slow.Err() == nil {
			// Held for a while and let go for a moment. That it ends while it is held
			// is no failure.
			_ = pgx.BeginFunc(slow, w.InventoryDB, func(tx pgx.Tx) error {
				_, err := tx.Exec(slow, `select from stock where sku = 'SKU-1' for update; select pg_sleep(1)`)
				return err
			})
			pause(t, 10*time.Millisecond)
		}
	})
	defer holding.Wait()
	defer stop()
	load := w.Placing(100, events.Item{SKU: "SKU-1", Quantity: 1})
	for range int(lasts(2, 20)) {
		pause(t, time.Duration(rand.Int64N(int64(3*time.Second))))
		for _, command := range []string{"stop_app", "start_app"} {
			if _, err := own.Broker.Ctl(t.Context(), command); err != nil {
				t.Fatal(err)
			}
		}
		eventuallyReady(t, time.Minute, w.inventories[0], http.StatusOK, "ok")
	}
	load.Wait()
	stop()
	w.recovered()
	wantNobodyBlamed(t, w)
}

// The broker gives a consumer some seconds for a message, and somebody holds the
// row that one of them needs for longer. The others pass it, and when the broker
// has closed the channel the consumer comes back. (B35)
func consumerTimeout(t *testing.T, own *testenv.Servers) {
	set := func(name, value string) {
		t.Helper()
		if _, err := own.Broker.Ctl(t.Context(), "eval", "application:set_env(rabbit, "+name+", "+value+")."); err != nil {
			t.Fatal(err)
		}
	}
	// More than the service waits for a lock: else no batch gets so far that those
	// which need another row pass.
	set("consumer_timeout", fmt.Sprint(lasts(7*time.Second, 10*time.Second).Milliseconds()))
	set("channel_tick_interval", "1000") // how often a channel looks at it; once a minute by default
	defer set("consumer_timeout", "1800000")
	w := begin(t, setup{servers: &own.Env, processes: 1})
	inventory := w.inventories[0]
	release := lock(t, w.InventoryDB, `select from stock where sku = 'SKU-1' for update`)
	held := w.Place(1, events.Item{SKU: "SKU-1", Quantity: 1})[0]
	waitsForLock(t, w.InventoryDB)
	passing := w.Place(5, events.Item{SKU: "SKU-2", Quantity: 1})
	var ids []string
	for _, o := range passing {
		ids = append(ids, o.OrderID)
	}
	testenv.Eventually(t, 2*time.Minute, "the others are reserved", func() error {
		var n int
		err := w.InventoryDB.QueryRow(t.Context(), `select count(*) from inventory_orders where order_id = any ($1)`, ids).Scan(&n)
		return errors.Join(err, testenv.Want(n, len(ids)))
	})
	testenv.Eventually(t, time.Minute, "the broker loses patience", func() error {
		if !logged(inventory, "no session with the broker") {
			return errors.New("not logged")
		}
		return nil
	})
	pause(t, lasts(5*time.Second, 3*time.Minute)) // and again
	release()
	w.recovered()
	wantNobodyBlamed(t, w)
	var state string
	if err := w.InventoryDB.QueryRow(t.Context(), `select state from inventory_orders where order_id = $1`, held.OrderID).Scan(&state); err != nil || state != "reserved" {
		t.Errorf("the order that waited is %q (%v), want reserved", state, err)
	}
}

// The broker is away, as by a power cut, for longer than anything waits. Orders
// are taken meanwhile, and leave when it is back, without anybody touching
// anything. (B11, A34)
func brokerStopped(t *testing.T, own *testenv.Servers) {
	w := begin(t, setup{servers: &own.Env})
	stop := watch(t, w.orders[0])
	w.under(func() {
		if err := own.Broker.Kill(); err != nil {
			t.Fatal(err)
		}
		for _, p := range w.orders {
			eventuallyReady(t, 10*time.Second, p, http.StatusOK, "degraded", "publisher degraded", "consumer degraded")
		}
		for _, p := range w.inventories {
			eventuallyReady(t, 10*time.Second, p, http.StatusServiceUnavailable, "unavailable", "consumer unavailable")
		}
		wantAtOnce(t, w.Place(30))
		pause(t, lasts(8*time.Second, time.Minute))
	})
	// The load is over: from here on nobody comes and wakes a relay.
	if err := own.Broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	w.Settled()
	if took := time.Since(back); took > 30*time.Second {
		t.Errorf("the backlog took %s to drain", took)
	}
	w.recovered()
	wantTakingOrders(t, w, stop())
}

// wantTakingOrders fails the test unless an order process was ready all the time,
// and knew that something was wrong.
func wantTakingOrders(t *testing.T, w *world, seen []readiness) {
	t.Helper()
	degraded := false
	for _, r := range seen {
		degraded = degraded || r.Status == "degraded"
		if r.code != http.StatusOK {
			t.Errorf("/readyz of %s during an outage of the broker: %s, want 200", w.orders[0].Name, r)
		}
	}
	if !degraded {
		t.Errorf("/readyz of %s never said degraded: was there an outage?", w.orders[0].Name)
	}
	w.wantOnlyAnswers(http.StatusCreated)
}

// wantAtOnce fails the test unless each order was accepted at the first try.
func wantAtOnce(t *testing.T, orders []system.Order) {
	t.Helper()
	for _, o := range orders {
		if o.Tries != 1 {
			t.Errorf("order %s took %d tries, want 1", o.OrderID, o.Tries)
		}
	}
}

// A broker in alarm reads nothing from those that publish, so that whatever they
// do on their connections may last for ever. Orders are taken all the same, and
// the services end when they are told to. (B28)
func memoryAlarm(t *testing.T, own *testenv.Servers) {
	watermark := func(fraction string) {
		t.Helper()
		if _, err := own.Broker.Ctl(t.Context(), "set_vm_memory_high_watermark", fraction); err != nil {
			t.Fatal(err)
		}
	}
	w := begin(t, setup{servers: &own.Env, processes: 1})
	order, inventory := w.orders[0], w.inventories[0]
	w.under(func() {
		watermark("0.0000001")
		eventuallyReady(t, 20*time.Second, order, http.StatusOK, "degraded", "blocked by the broker")
		wantAtOnce(t, w.Place(20))
		// At night beyond the time after which an unconfirmed message is given up.
		pause(t, lasts(3*time.Second, 30*time.Second))
	})
	if !logged(order, "the broker takes no messages") {
		t.Error("the log does not say that the broker takes no messages")
	}
	for _, p := range []*system.Process{order, inventory} {
		p.Stop() // and it has to exit with 0 within 20 seconds
		p.Launch()
	}
	wantAtOnce(t, w.Place(5))
	watermark("0.4")
	w.recovered()
}

// PostgreSQL goes down and comes back, in order and as by a crash. (B94)
func databaseRestarts(t *testing.T, own *testenv.Servers) {
	w := begin(t, setup{servers: &own.Env})
	var since time.Time
	if err := w.OrderDB.QueryRow(t.Context(), `select now()`).Scan(&since); err != nil {
		t.Fatal(err)
	}
	w.under(func() {
		for _, mode := range []servers.RestartMode{servers.Fast, servers.Fast, servers.Immediate} {
			pause(t, lasts(2*time.Second, 20*time.Second))
			if err := own.Postgres.Restart(t.Context(), mode); err != nil {
				t.Fatal(err)
			}
		}
		pause(t, 2*time.Second)
	})
	w.recovered()
	// Some clients do not wait for their 503: the service tries for 5 seconds.
	w.wantOnlyAnswers(http.StatusCreated, http.StatusServiceUnavailable, 0)
	const gaps = `
select max(gap) from (select created_at - lag(created_at) over (order by created_at) as gap from orders where created_at > $1) g`
	var longest time.Duration
	if err := w.OrderDB.QueryRow(t.Context(), gaps, since).Scan(&longest); err != nil {
		t.Fatal(err)
	}
	if t.Logf("no order for %s at most", longest); longest > 10*time.Second {
		t.Errorf("no order was accepted for %s, want some seconds at most", longest)
	}
}
