package outbox

import (
	"context"
	"sync"
	"time"
)

// hand holds the rows that a relay has claimed and not yet settled, by event id.
type hand struct {
	mu      sync.Mutex
	rows    map[string]*row
	changed chan struct{} // closed and renewed whenever a row leaves
}

// add takes claimed rows in hand and returns those that are new. A row that is
// in hand already had its lease run out and was claimed again here: the message
// on its way goes on under the new claim, and is not sent a second time.
func (h *hand) add(rows []*row) []*row {
	h.mu.Lock()
	defer h.mu.Unlock()
	fresh := make([]*row, 0, len(rows))
	for _, r := range rows {
		if old, ok := h.rows[r.ID]; ok {
			old.claim, old.trusted, old.lost = r.claim, r.trusted, false
			continue
		}
		h.rows[r.ID] = r
		fresh = append(fresh, r)
	}
	return fresh
}

// check returns until when r's claim may be believed and whether it was lost.
func (h *hand) check(r *row) (trusted time.Time, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.trusted, r.lost
}

// claims returns ids and claim ids of outcomes, which may have been claimed
// anew since they were sent.
func (h *hand) claims(outcomes []outcome) (ids, claims, errs []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range outcomes {
		ids, claims = append(ids, o.ID), append(claims, o.claim)
		text := ""
		if o.err != nil {
			text = o.err.Error()
		}
		errs = append(errs, text)
	}
	return ids, claims, errs
}

// all returns ids and claim ids of everything in hand.
func (h *hand) all() (ids, claims []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, r := range h.rows {
		ids, claims = append(ids, id), append(claims, r.claim)
	}
	return ids, claims
}

// renewed notes which of the claims asked for could be renewed; the others are
// lost.
func (h *hand) renewed(asked, claims []string, kept map[string]bool, trusted time.Time) (lost int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, id := range asked {
		r, ok := h.rows[id]
		switch {
		case !ok || r.claim != claims[i]: // settled or claimed anew meanwhile
		case kept[id]:
			r.trusted = trusted
		default:
			r.lost = true
			lost++
		}
	}
	return lost
}

// letGo lets go of rows that were settled under claims, and returns those that
// were claimed anew meanwhile: their outcome is to be settled under the new
// claim.
func (h *hand) letGo(outcomes []outcome, claims []string) (again []outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, o := range outcomes {
		if o.claim != claims[i] {
			again = append(again, o)
		} else {
			delete(h.rows, o.ID)
		}
	}
	close(h.changed)
	h.changed = make(chan struct{})
	return again
}

// rest returns everything that is still in hand, as of unknown outcome.
func (h *hand) rest() []outcome {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := make([]outcome, 0, len(h.rows))
	for _, r := range h.rows {
		left = append(left, outcome{r, ErrUnknown})
	}
	return left
}

func (h *hand) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.rows)
}

// waitBelow blocks until fewer than n rows are in hand, or returns the error of
// ctx.
func (h *hand) waitBelow(ctx context.Context, n int) error {
	for {
		h.mu.Lock()
		size, changed := len(h.rows), h.changed
		h.mu.Unlock()
		if size < n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *hand) waitEmpty(ctx context.Context) error { return h.waitBelow(ctx, 1) }
