package system

import (
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// The oracle is worth nothing if it cannot say no: each line of damage below is
// something that a broken product could do, and that only the client knows. What
// the databases know is in internal/check.
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
	for _, damage := range []struct{ sql, want string }{
		{`delete from order_answers where order_id =` + one + `; delete from orders where order_id =
			(select order_id from orders except select order_id from order_answers)`, "was accepted and is not there"},
		{`insert into orders select order_id || '9', event_id || '9', customer_id, amount, currency, items, status,
			reason, last_sequence, created_at, updated_at from orders limit 1`, "has two orders"},
		{`update orders set items = '[{"sku":"SKU-1","quantity":9}]' where order_id =` + one, "is stored as"},
		{`update orders set status = 'reserved' where status = 'cancelled'`, "told that it is cancelled: true"},
		{`update orders set status = 'cancelled'`, "told that it is cancelled: false"},
		{`delete from idempotency_keys where order_id =` + one, "5 idempotency keys"},
	} {
		if got := strings.Join(s.toldAfter(t, damage.sql), "\n"); !strings.Contains(got, damage.want) {
			t.Errorf("after %s\ngot %q, want a problem with %q", damage.sql, got, damage.want)
		}
	}
}

// toldAfter does damage to the orders in a transaction, looks at it, and undoes
// it.
func (s *System) toldAfter(t *testing.T, damage string) []string {
	t.Helper()
	tx, err := s.OrderDB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), damage); err != nil {
		t.Fatalf("%s: %v", damage, err)
	}
	problems, err := s.told(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	return problems
}
