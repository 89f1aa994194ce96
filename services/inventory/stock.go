package inventory

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/jackc/pgx/v5"
)

// stockLine is what there is of one sku.
type stockLine struct {
	SKU       string `json:"sku"`
	OnHand    int64  `json:"onHand"`
	Reserved  int64  `json:"reserved"`
	Available int64  `json:"available"`
}

const stockColumns = `sku, on_hand, reserved, on_hand - reserved`

// stockPage is the most that one answer lists.
const stockPage = 1000

const listStockSQL = `select ` + stockColumns + ` from stock where sku > $1 order by sku limit $2`

// listStock is GET /stock: all skus by name. Where there are more than a
// thousand, "next" is the address of the next page.
func (s *service) listStock(w http.ResponseWriter, r *http.Request) error {
	after := r.URL.Query().Get("after")
	if after != "" && !isName(after) {
		return newProblem(http.StatusBadRequest, "after is not a sku")
	}
	rows, err := s.db.Query(r.Context(), listStockSQL, after, stockPage+1)
	if err != nil {
		return fmt.Errorf("list stock: %w", err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stockLine])
	if err != nil {
		return fmt.Errorf("list stock: %w", err)
	}
	page := struct {
		Stock []stockLine `json:"stock"`
		Next  string      `json:"next,omitempty"`
	}{Stock: lines}
	if len(lines) > stockPage {
		page.Stock = lines[:stockPage]
		page.Next = "/stock?after=" + url.QueryEscape(lines[stockPage-1].SKU)
	}
	reply(w, http.StatusOK, page)
	return nil
}

const getStockSQL = `select ` + stockColumns + ` from stock where sku = $1`

// getStock is GET /stock/{sku}.
func (s *service) getStock(w http.ResponseWriter, r *http.Request) error {
	sku, err := pathName(r, "sku")
	if err != nil {
		return err
	}
	rows, err := s.db.Query(r.Context(), getStockSQL, sku)
	if err != nil {
		return fmt.Errorf("stock of %s: %w", sku, err)
	}
	line, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[stockLine])
	if err != nil {
		return orNotFound(err, "stock of "+sku)
	}
	reply(w, http.StatusOK, line)
	return nil
}
