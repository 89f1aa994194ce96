package inventory

import (
	"fmt"
	"testing"

	"example.com/baton/internal/testenv"
)

// B92: booking a batch costs the batch, however many orders were booked before
// and however many skus there are.
func TestHotStatementsUseTheirIndexes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, sql := range []string{
		`insert into stock (sku, on_hand) select 'SKU-P' || n, 10 from generate_series(1, 100000) n`,
		`insert into inventory_orders (order_id, state, event_id) select 'ORD-' || n, 'reserved', 'e' || n from generate_series(1, 100000) n`,
		`insert into inventory_reservations (order_id, sku, quantity, status, event_id)
			select 'ORD-' || n, 'SKU-P' || n, 1, 'reserved', 'e' || n from generate_series(1, 100000) n`,
		`insert into inbox_messages (consumer_name, event_id) select '` + consumerName + `', 'e' || n from generate_series(1, 100000) n`,
		`analyze stock, inventory_orders, inventory_reservations, inbox_messages`,
	} {
		b.exec(sql)
	}
	var ids, skus, text []string
	var numbers []int64
	for i := range 250 {
		ids, skus = append(ids, fmt.Sprintf("ORD-%d", i+1)), append(skus, fmt.Sprintf("SKU-P%d", i+1))
		text, numbers = append(text, "x"), append(numbers, 1)
	}
	const orders, lines, stock = "inventory_orders_pkey", "inventory_reservations_order_id_sku_key", "stock_pkey"
	for name, s := range map[string]testenv.Hot{
		"new orders":    {SQL: insertOrdersSQL, Args: []any{ids, text, ids}, Sorts: true},
		"lock orders":   {SQL: lockOrdersSQL, Args: []any{ids}, Indexes: []string{orders}, Sorts: true},
		"held lines":    {SQL: heldLinesSQL, Args: []any{ids}, Indexes: []string{lines}},
		"lock stock":    {SQL: lockStockSQL, Args: []any{skus}, Indexes: []string{stock}, Sorts: true},
		"update orders": {SQL: updateOrdersSQL, Args: []any{ids, text, text, text}, Indexes: []string{orders}},
		"insert lines":  {SQL: insertLinesSQL, Args: []any{ids, skus, numbers, text, ids}},
		"release lines": {SQL: releaseLinesSQL, Args: []any{ids}, Indexes: []string{lines}},
		"update stock":  {SQL: updateStockSQL, Args: []any{skus, numbers}, Indexes: []string{stock}},

		"get a reservation":     {SQL: findReservationSQL, Args: []any{"ORD-1"}, Indexes: []string{orders}},
		"lines of an order":     {SQL: findItemsSQL, Args: []any{"ORD-1"}, Indexes: []string{lines}, Sorts: true},
		"get a sku":             {SQL: getStockSQL, Args: []any{"SKU-P1"}, Indexes: []string{stock}},
		"list of skus":          {SQL: listStockSQL, Args: []any{"SKU-P1", stockPage + 1}, Indexes: []string{stock}},
		"timeline: the inbox's": {SQL: recordedSQL, Args: []any{consumerName, []string{"e1", "e2"}}, Indexes: []string{"inbox_messages_pkey"}, Sorts: true},
	} {
		t.Run(name, func(t *testing.T) { s.Check(t, b.db) })
	}
}
