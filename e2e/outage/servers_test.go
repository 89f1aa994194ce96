package outage

import (
	"net/http"
	"testing"
	"time"

	"example.com/baton/internal/servers"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// What takes a whole server down has a pair of its own, one for all of it, since
// a broker takes its time to start.
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
