package chaos

import (
	"slices"
	"testing"

	"example.com/baton/internal/testenv"
	migrations "example.com/baton/migrations/order"
	"example.com/baton/shared/events"
)

// What clients were told is held against the orders, and each way in which the
// two may differ is found.
func TestCompare(t *testing.T) {
	t.Parallel()
	db := testenv.Pool(t, testenv.Migrated(t, migrations.FS).Admin)
	line := []events.Item{{SKU: "SKU-1", Quantity: 2}}
	l := newLoad(nil, 1, "")
	for _, o := range []struct{ id, event, customer, status string }{
		{"O-1", "E-1", "C-1", "reserved"},
		{"O-2", "E-2", "C-2", "cancelled"},
	} {
		const insert = `
insert into orders (order_id, event_id, customer_id, amount, currency, items, status, created_at, updated_at)
values ($1, $2, $3, 1, 'CNY', $4, $5, now(), now())`
		if _, err := db.Exec(t.Context(), insert, o.id, o.event, o.customer, line, o.status); err != nil {
			t.Fatal(err)
		}
		l.note(o.id, receipt{o.event, o.customer, line}, 0)
	}
	l.cancelled["O-2"] = true
	right := map[string]receipt{"O-1": l.orders["O-1"], "O-2": l.orders["O-2"]}

	for name, tt := range map[string]struct {
		wrong func()
		want  []string
	}{
		"nothing":          {func() {}, nil},
		"lost":             {func() { l.orders["O-3"] = receipt{"E-3", "C-3", line} }, []string{ruleOrderLost}},
		"unknown":          {func() { delete(l.orders, "O-1") }, []string{ruleOrderUnknown}},
		"other event":      {func() { l.orders["O-1"] = receipt{"E-9", "C-1", line} }, []string{ruleOrderOther}},
		"other items":      {func() { l.orders["O-1"] = receipt{"E-1", "C-1", nil} }, []string{ruleOrderOther}},
		"not told of":      {func() { l.cancelled["O-2"] = false }, []string{ruleCancelled}},
		"told and not so":  {func() { l.cancelled["O-1"] = true }, []string{ruleCancelled}},
		"two, one unknown": {func() { exec(t, db, `update orders set customer_id = 'C-1'`); delete(l.orders, "O-2") }, []string{ruleOrderTwice, ruleOrderUnknown}},
	} {
		exec(t, db, `update orders set customer_id = 'C-' || right(order_id, 1)`)
		clear(l.orders)
		for id, r := range right {
			l.orders[id] = r
		}
		l.cancelled = map[string]bool{"O-2": true}
		tt.wrong()
		found, err := l.compare(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range found {
			got = append(got, v.Rule)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, found, tt.want)
		}
	}
}
