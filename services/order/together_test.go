package order

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/baton/shared/events"
)

// placings makes orders that arrive together, by their customers and keys.
func (f fixture) placings(t *testing.T, customersAndKeys ...string) []*placing {
	t.Helper()
	var batch []*placing
	for _, ck := range customersAndKeys {
		customer, key, _ := strings.Cut(ck, "/")
		number, now, err := newNumbers(f.db, 1).take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := newOrder{CustomerID: customer, Amount: "1.00", Currency: "CNY", Items: []events.Item{{SKU: "SKU-1", Quantity: 1}}}
		o := n.order(number, now)
		event, err := message(o.created(), "")
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, &placing{order: o, key: key, mine: placed{o.OrderID, n.hash(), encode(o)}, event: event, done: make(chan struct{})})
	}
	return batch
}

// Orders that arrive together are stored as if each had come alone: a key that
// several have belongs to one of them, and one that the database refuses harms
// only itself.
func TestTogether(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, sql := range []string{
		`create function refuse() returns trigger language plpgsql as $$ begin raise 'no orders of %', new.customer_id; end $$`,
		`create trigger refuse before insert on orders for each row when (new.customer_id = 'BAD') execute function refuse()`,
	} {
		if _, err := f.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	group := newTogether(f.db, 5*time.Second)
	for name, batch := range map[string][]*placing{
		"all good": f.placings(t, "A", "B/k1", "C/k2", "C/k2"),
		"one bad":  f.placings(t, "A", "BAD/k3", "B/k4", "BAD", "C/k5", "C/k5"),
	} {
		group.store(t.Context(), batch)
		owner := map[string]string{}
		for i, p := range batch {
			<-p.done
			var pg *pgconn.PgError
			if refused := errors.As(p.err, &pg) && strings.Contains(pg.Message, "BAD"); refused != (p.order.CustomerID == "BAD") || !refused && p.err != nil {
				t.Errorf("%s, %d: %v", name, i, p.err)
				continue
			}
			if p.key != "" && p.err == nil {
				if first, ok := owner[p.key]; ok && first != p.first.orderID {
					t.Errorf("%s: key %s belongs to %s and %s", name, p.key, first, p.first.orderID)
				}
				owner[p.key] = p.first.orderID
			}
			stored := p.err == nil && p.first.orderID == p.mine.orderID
			const storedSQL = `select (select count(*) from orders where order_id = $1), (select count(*) from outbox_messages where aggregate_id = $1)`
			var rows [2]int
			if err := f.db.QueryRow(t.Context(), storedSQL, p.mine.orderID).Scan(&rows[0], &rows[1]); err != nil {
				t.Fatal(err)
			}
			want := [2]int{}
			if stored {
				want = [2]int{1, 1}
			}
			if rows != want {
				t.Errorf("%s, %d: %v rows of orders and events, want %v", name, i, rows, want)
			}
		}
	}
}

// Who waits for a turn does so for as long as its request may take, and leaves
// nothing behind.
func TestTogetherWaitsForATurn(t *testing.T) {
	t.Parallel()
	f := setup(t)
	group := newTogether(f.db, 5*time.Second)
	for range storeTurns {
		group.turns <- struct{}{}
	}
	p := f.placings(t, "A")[0]
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := group.place(ctx, p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the wait", err)
	}
	<-group.turns
	// More than one transaction takes, all at once.
	const n = storeAtOnce + 20
	placed := make(chan error, n)
	for _, p := range f.placings(t, slices.Repeat([]string{"A"}, n)...) {
		go func() {
			_, err := group.place(t.Context(), p)
			placed <- err
		}()
	}
	for range n {
		if err := <-placed; err != nil {
			t.Error(err)
		}
	}
	f.wantOrders(t, n)
}
