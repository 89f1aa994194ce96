package outage

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// Every process is told to end in its turn and started again, while orders come
// in. Each must exit with 0 within 20 seconds, which Stop holds it to. (B110)
func TestStoppedUnderLoad(t *testing.T) {
	t.Parallel()
	w := begin(t, setup{lease: time.Minute}) // so that nothing is sent again because of it
	w.under(func() {
		for range int(lasts(1, 5)) {
			for _, p := range w.all() {
				p.Stop()
				p.Restart()
			}
		}
	})
	w.Settled()
	w.Exact()
	wantNobodyBlamed(t, w)
	// They have stopped in order, so nothing was sent twice and nothing that was
	// committed was delivered again.
	if n := w.Extra(); n > 0 {
		t.Errorf("%d messages were sent again", n)
	}
	if n := w.sum("baton_inbox_duplicates_total", w.all()...); n > 0 {
		t.Errorf("%d deliveries were repeated although they had been handled", n)
	}
}

// A request that is in hand when the service is told to end gets its answer;
// nobody else is let in. (B110)
func TestStopFinishesRequests(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order := s.StartOrder()
	release := lock(t, s.OrderDB, `lock table orders in exclusive mode`)
	address := order.URL()
	type answer struct {
		status int
		body   string
		err    error
	}
	answers := make(chan answer, 1)
	go func() { // ends with the answer
		res, err := http.Post(address+"/orders", "application/json", strings.NewReader(
			`{"customerId":"C10086","amount":199.00,"currency":"CNY","items":[{"sku":"SKU-1","quantity":2}]}`))
		if err != nil {
			answers <- answer{err: err}
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		answers <- answer{res.StatusCode, string(body), err}
	}()
	waitsForLock(t, s.OrderDB)

	var stopping sync.WaitGroup
	stopping.Go(order.Stop)
	testenv.Eventually(t, 10*time.Second, "the port is closed", func() error {
		conn, err := net.Dial("tcp", parse(t, address).Host)
		if err != nil {
			return nil
		}
		_ = conn.Close()
		return fmt.Errorf("a new connection is accepted")
	})
	release()
	a := <-answers
	if a.err != nil || a.status != http.StatusCreated {
		t.Errorf("the request in hand was answered by %d %s (%v), want 201", a.status, a.body, a.err)
	}
	stopping.Wait()
	var orders int
	if err := s.OrderDB.QueryRow(t.Context(), `select count(*) from orders`).Scan(&orders); err != nil || orders != 1 {
		t.Errorf("%d orders are stored (%v), want 1", orders, err)
	}
}

// A delivery that is in hand when the service is told to end is finished and
// acknowledged; those it had only taken in advance go back. (B40)
func TestStopFinishesDeliveries(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	_, inventory := s.Start()
	release := lock(t, s.InventoryDB, `select from stock where sku = 'SKU-1' for update`)
	in := s.Place(1, events.Item{SKU: "SKU-1", Quantity: 2})
	waitsForLock(t, s.InventoryDB)
	s.Place(10, events.Item{SKU: "SKU-2", Quantity: 1})

	var stopping sync.WaitGroup
	stopping.Go(inventory.Stop)
	pause(t, time.Second) // for the signal to be heard
	release()
	stopping.Wait()
	var state string
	const find = `select coalesce((select state from inventory_orders where order_id = $1), 'nothing')`
	if err := s.InventoryDB.QueryRow(t.Context(), find, in[0].OrderID).Scan(&state); err != nil || state != "reserved" {
		t.Errorf("the delivery in hand has left %s (%v), want reserved", state, err)
	}
	testenv.Eventually(t, 10*time.Second, "the other deliveries are back", func() error {
		n, err := testenv.QueueDepth(s.Vhost, system.InventoryQueue)
		if err != nil {
			return err
		}
		return testenv.Want(n, 10)
	})
	inventory.Restart()
	s.Settled()
	s.Exact()
	if n := inventory.Absorbed(); n > 0 {
		t.Errorf("%d deliveries were repeated although they had been handled", n)
	}
}

// lock holds what a statement locks until release is called.
func lock(t *testing.T, db *pgxpool.Pool, sql string) (release func()) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), sql)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // for a test that fails before
	return func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// waitsForLock waits until a session of the service waits for a lock.
func waitsForLock(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	const waiting = `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
	testenv.Eventually(t, 20*time.Second, "somebody waits for the lock", func() error {
		var n int
		if err := db.QueryRow(t.Context(), waiting).Scan(&n); err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("nobody waits")
		}
		return nil
	})
}
