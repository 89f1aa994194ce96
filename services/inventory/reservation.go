package inventory

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"example.com/baton/shared/events"
)

// reservation is what inventory knows of an order.
type reservation struct {
	OrderID       string         `json:"orderId"`
	State         State          `json:"state"`
	Reason        string         `json:"reason,omitempty"` // why it was rejected
	EventID       string         `json:"eventId"`          // the event that was heard first
	CancelEventID string         `json:"cancelEventId,omitempty"`
	CreatedAt     events.Time    `json:"createdAt"`
	UpdatedAt     events.Time    `json:"updatedAt"`
	Items         []reservedItem `json:"items"`
}

type reservedItem struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
	Status   string `json:"status"` // "reserved" or "released"
}

// getReservation is GET /reservations/{orderId}.
func (s *service) getReservation(w http.ResponseWriter, r *http.Request) error {
	id, err := pathName(r, "orderId")
	if err != nil {
		return err
	}
	res, err := findReservation(r.Context(), s.db, id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errNotFound
	case err != nil:
		return err
	}
	reply(w, http.StatusOK, res)
	return nil
}

const findReservationSQL = `
select order_id, state, coalesce(reason, ''), event_id, coalesce(cancel_event_id, ''), created_at, updated_at
from inventory_orders where order_id = $1`

const findItemsSQL = `select sku, quantity, status from inventory_reservations where order_id = $1 order by sku`

// findReservation reads both tables as of one moment.
func findReservation(ctx context.Context, db DB, id string) (reservation, error) {
	var res reservation
	var items []reservedItem
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, db, snapshot, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, findReservationSQL, id).Scan(&res.OrderID, &res.State, &res.Reason,
			&res.EventID, &res.CancelEventID, &res.CreatedAt.Time, &res.UpdatedAt.Time)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, findItemsSQL, id)
		if err != nil {
			return err
		}
		items, err = pgx.CollectRows(rows, pgx.RowToStructByPos[reservedItem])
		return err
	})
	if err != nil {
		return res, fmt.Errorf("reservation of %s: %w", id, err)
	}
	res.Items = items
	return res, nil
}

// orNotFound is err with what was looked for, and errNotFound where there is no
// such row.
func orNotFound(err error, what string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return errNotFound
	}
	return fmt.Errorf("%s: %w", what, err)
}
