package system

import (
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// The oracle is worth nothing if it cannot say no: each line of damage below is
// something that a broken product could do.
func TestOracleSeesDamage(t *testing.T) {
	t.Parallel()
	s := New(t, Options{})
	s.Start()
	orders := s.Place(6)
	if !s.Cancel(orders[0]) {
		t.Error("an order could not be cancelled")
	}
	s.Settled()
	s.Exact()
	if extra := s.Extra(); extra != 0 {
		t.Errorf("%d more messages than events were sent, want none", extra)
	}

	const one = ` (select order_id from orders where status = 'reserved' order by 1 limit 1)`
	const held = ` (select order_id from inventory_orders where state = 'reserved' order by 1 limit 1)`
	for _, damage := range []struct{ database, sql, want string }{
		{"order", `delete from order_answers where order_id =` + one + `; delete from orders where order_id =
			(select order_id from orders except select order_id from order_answers)`, "was accepted and is not there"},
		{"order", `insert into orders select order_id || '9', event_id || '9', customer_id, amount, currency, items, status,
			reason, last_sequence, created_at, updated_at from orders limit 1`, "has two orders"},
		{"order", `update orders set items = '[{"sku":"SKU-1","quantity":9}]' where order_id =` + one, "is stored as"},
		{"order", `update orders set status = 'created' where order_id =` + one, "has had no answer"},
		{"order", `update orders set status = 'reserved' where status = 'cancelled'`, "told that it is cancelled: true"},
		{"order", `update orders set status = 'cancelled'`, "told that it is cancelled: false"},
		{"order", `delete from idempotency_keys where order_id =` + one, "5 idempotency keys"},
		{"order", `update outbox_messages set status = 'Pending', published_at = null where aggregate_id =` + one, "is Pending"},
		{"order", `delete from outbox_messages where event_type = 'order.cancelled'`, "has the events [order.created]"},
		{"order", `delete from inbox_messages where event_id = (select max(event_id) from inbox_messages)`, "is 0 times in the inbox"},
		{"order", `update order_answers set effect = 'contradiction' where order_id =` + one, "was contradiction"},
		{"order", `insert into order_answers select event_id || '9', order_id, event_type, reason, effect, order_status
			from order_answers limit 1`, "2 answers to order"},
		{"inventory", `delete from inventory_orders where order_id =` + held, `"" at inventory`},
		{"inventory", `update inventory_orders set state = 'rejected', reason = 'x' where order_id =` + held, `reserved and "rejected"`},
		{"inventory", `delete from inventory_reservations where order_id =` + held, "holds map[]"},
		{"inventory", `update inventory_reservations set quantity = quantity * 2 where order_id =` + held, "holds map[SKU-"},
		{"inventory", `update stock set reserved = reserved + 1 where sku = 'SKU-9'`, "of SKU-9 are reserved"},
		{"inventory", `insert into inventory_orders (order_id, state, event_id)
			values ('ORD-20260101-000001', 'cancelled_first', 'x')`, "does not exist"},
		{"inventory", `insert into inbox_messages (consumer_name, event_id)
			values ('another', (select max(event_id) from inbox_messages))`, "is 2 times in the inbox"},
		{"inventory", `insert into inbox_suspects values ('x', 'y', 1)`, "a mark of the suspect y"},
		{"inventory", `delete from outbox_messages where aggregate_id =` + held, "has answered []"},
		{"inventory", `update outbox_messages set status = 'Failed', failed_at = now(), published_at = null
			where aggregate_id =` + held, "is Failed"},
	} {
		if got := strings.Join(s.problemsAfter(t, damage.database, damage.sql), "\n"); !strings.Contains(got, damage.want) {
			t.Errorf("after %s\ngot %q, want a problem with %q", damage.sql, got, damage.want)
		}
	}
	dead, err := readBooks(t.Context(), s.OrderDB, s.InventoryDB)
	if err != nil {
		t.Fatal(err)
	}
	dead.dead[orders[1].EventID] = true
	if got := dead.check(s.accepted, s.cancelled, nil); len(got) != 1 || !strings.Contains(got[0], "dead-lettered") {
		t.Errorf("with a dead letter: %q, want that one problem", got)
	}
}

// problemsAfter does damage in a transaction, looks at it, and undoes it.
func (s *System) problemsAfter(t *testing.T, database, damage string) []string {
	t.Helper()
	db := s.OrderDB
	if database == "inventory" {
		db = s.InventoryDB
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), damage); err != nil {
		t.Fatalf("%s: %v", damage, err)
	}
	var b *books
	if database == "inventory" {
		b, err = readBooks(t.Context(), s.OrderDB, tx)
	} else {
		b, err = readBooks(t.Context(), tx, s.InventoryDB)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.check(s.accepted, s.cancelled, nil)
}
