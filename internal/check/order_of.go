package check

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// What has no index comes last; it is read only if nothing before has the id.
const orderOfSQL = `
select order_id from orders where order_id = $1
union all select aggregate_id from outbox_messages where event_id = $1
union all select order_id from order_answers where event_id = $1
union all select order_id from orders where event_id = $1
limit 1`

const reservationOfSQL = `
select order_id from inventory_orders where order_id = $1
union all select aggregate_id from outbox_messages where event_id = $1
union all select order_id from inventory_orders where event_id = $1 or cancel_event_id = $1
limit 1`

// OrderOf returns the id of the order that an event is about, by either
// database; an order id is its own. It is empty if neither knows the id.
func OrderOf(ctx context.Context, src Sources, id string) (string, error) {
	for _, in := range []struct {
		db  Querier
		sql string
	}{{src.Orders, orderOfSQL}, {src.Inventory, reservationOfSQL}} {
		var orderID string
		err := in.db.QueryRow(ctx, in.sql, id).Scan(&orderID)
		switch {
		case err == nil:
			return orderID, nil
		case !errors.Is(err, pgx.ErrNoRows):
			return "", fmt.Errorf("look for %s: %w", id, err)
		}
	}
	return "", nil
}
