package chaos

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"example.com/baton/internal/check"
	"example.com/baton/shared/events"
)

// The rules that only clients can hold the service to. They come beside those of
// package check.
const (
	ruleOrderLost    = "client-order-lost"    // a client has a 201 and there is no such order
	ruleOrderTwice   = "client-order-twice"   // a request has more than one order
	ruleOrderOther   = "client-order-differs" // the order is not what the client was told
	ruleOrderUnknown = "client-order-unknown" // an order that no client knows of
	ruleCancelled    = "client-cancelled"     // cancelled and not told so, or the reverse
)

const clientOrdersSQL = `select order_id, event_id, customer_id, status, items from orders`

// compare holds what clients were told against the orders that there are.
func (l *load) compare(ctx context.Context, orders check.Querier) ([]check.Violation, error) {
	rows, err := orders.Query(ctx, clientOrdersSQL)
	if err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	broken := violations{}
	seen := make(map[string]bool, len(l.orders))
	customers := make(map[string]string, len(l.orders))
	var id, eventID, customer, status string
	var items []events.Item
	_, err = pgx.ForEachRow(rows, []any{&id, &eventID, &customer, &status, &items}, func() error {
		seen[id] = true
		if other, twice := customers[customer]; twice {
			broken.add(ruleOrderTwice, eventID, id, "the request of %s has the orders %s and %s", customer, other, id)
		}
		customers[customer] = id
		r, known := l.orders[id]
		switch {
		case !known:
			broken.add(ruleOrderUnknown, eventID, id, "no client was told of order %s of %s", id, customer)
		case r.eventID != eventID || r.customer != customer || !slices.Equal(r.items, items):
			broken.add(ruleOrderOther, eventID, id, "order %s is stored as %s %s %v, the client was told %s %s %v", id, eventID, customer, items, r.eventID, r.customer, r.items)
		case l.cancelled[id] != (status == "cancelled"):
			broken.add(ruleCancelled, eventID, id, "order %s is %s; the client was told that it is cancelled: %t", id, status, l.cancelled[id])
		}
		items = nil // or the next row is read into the same array
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	for id, r := range l.orders {
		if !seen[id] {
			broken.add(ruleOrderLost, r.eventID, id, "order %s of %s was accepted and is not there", id, r.customer)
		}
	}
	return broken.list(), nil
}

// violations by rule.
type violations map[string]*check.Violation

func (vs violations) add(rule, eventID, orderID, format string, args ...any) {
	v := vs[rule]
	if v == nil {
		v = &check.Violation{Rule: rule, Detail: fmt.Sprintf(format, args...)}
		vs[rule] = v
	}
	v.Count++
	if len(v.EventIDs) < check.MostIDs {
		v.EventIDs, v.OrderIDs = append(v.EventIDs, eventID), append(v.OrderIDs, orderID)
	}
}

func (vs violations) list() []check.Violation {
	var all []check.Violation
	for _, rule := range []string{ruleOrderLost, ruleOrderTwice, ruleOrderOther, ruleOrderUnknown, ruleCancelled} {
		if v := vs[rule]; v != nil {
			all = append(all, *v)
		}
	}
	return all
}
