package order

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	defaultPage = 20
	maxPage     = 100
)

// listOrders is GET /orders: the newest first, page by page. A page begins where
// the last one ended, by the order itself and not by a count, so that orders
// placed in the meantime neither shift it nor show up twice.
func (s *service) listOrders(w http.ResponseWriter, r *http.Request) error {
	q, err := readPage(r)
	if err != nil {
		return err
	}
	ctx, cancel := s.bounded(r.Context())
	defer cancel()
	// One more than asked for: there is a next page if it comes.
	args := []any{q.after.at, q.after.id, q.limit + 1}
	sql := newestSQL
	if q.status != "" {
		sql, args = newestByStatusSQL, append(args, q.status)
	}
	rows, err := s.db.Query(ctx, sql, args...)
	if err != nil {
		return fmt.Errorf("list orders: %w", err)
	}
	orders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Order, err error) {
		return o, row.Scan(o.columns()...)
	})
	if err != nil {
		return fmt.Errorf("list orders: %w", err)
	}
	answer := struct {
		Orders []Order `json:"orders"`
		Next   string  `json:"next,omitempty"` // cursor of the next page
	}{Orders: orders}
	if len(orders) > q.limit {
		answer.Orders = orders[:q.limit]
		answer.Next = cursorAfter(orders[q.limit-1]).String()
	}
	reply(w, http.StatusOK, "application/json", answer)
	return nil
}

// Both run along an index in its order, however far back the page is.
const newestSQL = `
select ` + orderColumns + ` from orders
where (created_at, order_id) < ($1::timestamptz, $2::text)
order by created_at desc, order_id desc limit $3`

const newestByStatusSQL = `
select ` + orderColumns + ` from orders
where status = $4 and (created_at, order_id) < ($1::timestamptz, $2::text)
order by created_at desc, order_id desc limit $3`

type page struct {
	limit  int
	status string
	after  cursor
}

func readPage(r *http.Request) (page, error) {
	q := page{limit: defaultPage, after: firstPage}
	values, err := params(r, "limit", "cursor", "status")
	if err != nil {
		return q, err
	}
	if text, ok := values["limit"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			return q, invalid(&fieldError{"limit", fmt.Sprintf("must be a whole number from 1 to %d", maxPage)})
		}
		q.limit = n
	}
	if text, ok := values["status"]; ok {
		switch text {
		case statusCreated, statusReserved, statusRejected, statusCancelled:
			q.status = text
		default:
			return q, invalid(&fieldError{"status", "must be created, reserved, rejected or cancelled"})
		}
	}
	if text, ok := values["cursor"]; ok {
		c, ok := parseCursor(text)
		if !ok {
			return q, invalid(&fieldError{"cursor", `must be the "next" of an earlier page`})
		}
		q.after = c
	}
	return q, nil
}

// cursor is the order after which a page begins.
type cursor struct {
	at pgtype.Timestamptz
	id string
}

// firstPage comes before every order.
var firstPage = cursor{at: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}}

func cursorAfter(o Order) cursor {
	return cursor{pgtype.Timestamptz{Time: o.CreatedAt.Time, Valid: true}, o.OrderID}
}

// String is what clients get to see: text that means nothing to them, so that it
// may change.
func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", c.at.Time.UnixMicro(), c.id))
}

func parseCursor(text string) (cursor, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return cursor{}, false
	}
	micros, id, _ := strings.Cut(string(b), " ")
	n, err := strconv.ParseInt(micros, 10, 64)
	at := time.UnixMicro(n)
	if err != nil || at.Year() < 1970 || at.Year() > 9999 || !orderIDForm.MatchString(id) {
		return cursor{}, false
	}
	c := cursor{pgtype.Timestamptz{Time: at, Valid: true}, id}
	return c, c.String() == text
}
