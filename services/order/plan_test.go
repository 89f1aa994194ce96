package order

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

// B92: a request and an answer cost what they are about, however many orders,
// keys and answers there are.
func TestHotStatementsUseTheirIndexes(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, sql := range []string{
		`insert into orders (order_id, event_id, customer_id, amount, currency, items, status, created_at, updated_at)
			select 'ORD-20260715-' || lpad(n::text, 6, '0'), n::text, 'C', 1, 'CNY', '[]',
				case n % 100 when 0 then 'cancelled' else 'reserved' end, now() - n * interval '1 second', now()
			from generate_series(1, 100000) n`,
		`insert into idempotency_keys (key, request_hash, order_id, answer, created_at)
			select 'k' || row_number() over (), '', order_id, '{}', created_at from orders`,
		`insert into order_answers (event_id, order_id, event_type, effect, order_status)
			select event_id, order_id, 'inventory.reserved', 'applied', 'created' from orders`,
		`analyze orders, idempotency_keys, order_answers`,
	} {
		if _, err := f.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var b pgx.Batch
	const id = "ORD-20260715-000001"
	event := outbox.Message{ID: "e", Type: "order.created", AggregateID: id, Sequence: 1, OccurredAt: time.Now(), Payload: []byte("{}")}
	if err := outbox.QueueIf(&b, orderIsStored, event); err != nil {
		t.Fatal(err)
	}
	another := event
	another.ID, another.AggregateID = "e2", "ORD-20260715-000002"
	if err := outbox.QueueIf(&b, orderIsStored, event, another); err != nil {
		t.Fatal(err)
	}
	queueOrders(&b, []*placing{{order: Order{OrderID: id, Amount: "1"}, key: "k1"}})
	enqueue, placing := b.QueuedQueries, b.QueuedQueries[2].Arguments

	var ids, text []string
	for i := range 250 {
		ids, text = append(ids, fmt.Sprintf("ORD-20260715-%06d", i+1)), append(text, "x")
	}
	const key, keyPrune = "idempotency_keys_pkey", "ix_idempotency_keys_prune"
	page := []any{firstPage.at, "", defaultPage + 1}
	for name, s := range map[string]testenv.Hot{
		"place: claim keys":    {SQL: claimKeysSQL, Args: []any{[]string{"new"}, [][]byte{{}}, []string{id}, []string{"{}"}}, Sorts: true},
		"place: orders":        {SQL: insertOrdersSQL, Args: placing, Indexes: []string{key}},
		"place: event":         {SQL: enqueue[0].SQL, Args: enqueue[0].Arguments, Indexes: []string{"orders_pkey"}},
		"place: events":        {SQL: enqueue[1].SQL, Args: enqueue[1].Arguments, Indexes: []string{"orders_pkey"}},
		"place: first answers": {SQL: firstAnswersSQL, Args: []any{[]string{"k1"}}, Indexes: []string{key}},
		"prune keys":           {SQL: pruneKeysSQL, Args: []any{time.Hour, pruneAtOnce}, Indexes: []string{keyPrune, key}},

		"answers: lock":   {SQL: lockOrdersSQL, Args: []any{ids}, Indexes: []string{"orders_pkey"}, Sorts: true},
		"answers: update": {SQL: updateOrdersSQL, Args: []any{ids, text, text}, Indexes: []string{"orders_pkey"}},
		"answers: record": {SQL: recordAnswersSQL, Args: []any{ids, ids, text, text, text, text}},

		"cancel: lock":   {SQL: lockOrderSQL, Args: []any{id}, Indexes: []string{"orders_pkey"}},
		"cancel: update": {SQL: cancelOrderSQL, Args: []any{id, 2, time.Now()}, Indexes: []string{"orders_pkey"}},

		"get":                   {SQL: findOrderSQL, Args: []any{id}, Indexes: []string{"orders_pkey"}},
		"timeline: answers":     {SQL: answersOfSQL, Args: []any{id}, Indexes: []string{"ix_order_answers_order"}, Sorts: true},
		"list":                  {SQL: newestSQL, Args: page, Indexes: []string{"ix_orders_newest"}},
		"list of a rare status": {SQL: newestByStatusSQL, Args: append(page, "cancelled"), Indexes: []string{"ix_orders_newest_by_status"}},
	} {
		t.Run(name, func(t *testing.T) { s.Check(t, f.db) })
	}
}
