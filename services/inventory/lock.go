package inventory

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
)

// databaseTime is the one clock that ages and times of occurrence are taken
// from.
func databaseTime(ctx context.Context, tx pgx.Tx) (now time.Time, err error) {
	if err := tx.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return time.Time{}, fmt.Errorf("read the time: %w", err)
	}
	return now, nil
}

// A new order is inserted as what its first event will most likely make of it,
// since nobody sees it before the commit: so most orders cost one row version
// and no update. An insert waits for another transaction that is inserting the
// same order, in the order of the ids.
const insertOrdersSQL = `
insert into inventory_orders (order_id, state, event_id)
select o.order_id, o.state, o.event_id
from unnest($1::text[], $2::text[], $3::text[]) as o (order_id, state, event_id)
order by o.order_id
on conflict (order_id) do nothing
returning order_id`

const lockOrdersSQL = `
select order_id, state from inventory_orders where order_id = any ($1) order by order_id for update`

const heldLinesSQL = `
select order_id, sku, quantity from inventory_reservations where order_id = any ($1) and status = 'reserved'`

// Locking and ordering are of one query: rows are locked as they come out of the
// sort.
const lockStockSQL = `
select sku, on_hand - reserved from stock where sku = any ($1) order by sku for update`

// openLedger locks the orders of a batch, then the stock that it may move, and
// reads both.
func openLedger(ctx context.Context, tx pgx.Tx, arrived []incoming) (*ledger, error) {
	l := &ledger{
		orders:    make(map[string]*order, len(arrived)),
		available: make(map[string]int64),
		change:    make(map[string]int64),
	}
	if err := l.lockOrders(ctx, tx, arrived); err != nil {
		return nil, fmt.Errorf("lock orders: %w", err)
	}
	if err := l.lockStock(ctx, tx, arrived); err != nil {
		return nil, fmt.Errorf("lock stock: %w", err)
	}
	return l, nil
}

func (l *ledger) lockOrders(ctx context.Context, tx pgx.Tx, arrived []incoming) error {
	var ids, states, eventIDs []string
	for _, e := range arrived {
		if l.orders[e.OrderID] != nil {
			continue
		}
		o := &order{id: e.OrderID, stored: Reserved}
		if e.EventType == events.OrderCancelled {
			o.stored = CancelledFirst
		}
		l.orders[o.id], l.all = o, append(l.all, o)
		ids, states, eventIDs = append(ids, o.id), append(states, string(o.stored)), append(eventIDs, e.EventID)
	}
	rows, err := tx.Query(ctx, insertOrdersSQL, ids, states, eventIDs)
	if err != nil {
		return err
	}
	inserted := make(map[string]bool, len(ids))
	var id string
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { inserted[id] = true; return nil }); err != nil {
		return err
	}
	if len(inserted) == len(ids) {
		return nil
	}
	var known []string
	for _, id := range ids {
		if !inserted[id] {
			known = append(known, id)
		}
	}
	return l.lockKnown(ctx, tx, known)
}

// lockKnown locks orders that had a row before, and reads what they hold.
func (l *ledger) lockKnown(ctx context.Context, tx pgx.Tx, ids []string) error {
	var b pgx.Batch
	b.Queue(lockOrdersSQL, ids).Query(func(rows pgx.Rows) error {
		var id string
		var state State
		_, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error {
			l.orders[id].state, l.orders[id].stored = state, state
			return nil
		})
		return err
	})
	b.Queue(heldLinesSQL, ids).Query(func(rows pgx.Rows) error {
		var id string
		var held line
		_, err := pgx.ForEachRow(rows, []any{&id, &held.sku, &held.quantity}, func() error {
			o := l.orders[id]
			o.lines, o.booked = append(o.lines, held), true
			return nil
		})
		return err
	})
	return tx.SendBatch(ctx, &b).Close()
}

func (l *ledger) lockStock(ctx context.Context, tx pgx.Tx, arrived []incoming) error {
	seen := make(map[string]bool)
	var skus []string
	want := func(sku string) {
		if !seen[sku] {
			seen[sku] = true
			skus = append(skus, sku)
		}
	}
	for _, e := range arrived {
		switch o := l.orders[e.OrderID]; {
		case e.EventType == events.OrderCreated && o.state == "":
			for _, it := range e.Items {
				want(it.SKU)
			}
		case e.EventType == events.OrderCancelled:
			for _, held := range o.lines {
				want(held.sku)
			}
		}
	}
	if len(skus) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, lockStockSQL, skus)
	if err != nil {
		return err
	}
	var sku string
	var available int64
	_, err = pgx.ForEachRow(rows, []any{&sku, &available}, func() error { l.available[sku] = available; return nil })
	return err
}
