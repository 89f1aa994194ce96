package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// settleAtOnce bounds how many outcomes one flush writes.
const settleAtOnce = 1000

// settleLoop writes outcomes down, as many at once as have come in or are about
// to, and renews the leases of what is in hand.
func (w *worker) settleLoop(ctx context.Context) {
	renew := time.NewTicker(w.Lease / 3)
	defer renew.Stop()
	w.renewedAt = time.Now()
	for {
		select {
		case o := <-w.outcomes:
			w.settle(ctx, w.collect(o))
		case <-renew.C:
			w.renew(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// linger is how long outcomes wait for others that are about to come: a claim's
// worth of them costs little more to write down than one. Nobody waits for it.
const linger = 5 * time.Millisecond

func (w *worker) collect(first outcome) []outcome {
	batch := []outcome{first}
	late := time.NewTimer(linger)
	defer late.Stop()
	for len(batch) < settleAtOnce {
		select {
		case o := <-w.outcomes:
			batch = append(batch, o)
			continue
		default:
		}
		if w.hand.size() <= len(batch) { // there are no others
			return batch
		}
		select {
		case o := <-w.outcomes:
			batch = append(batch, o)
		case <-late.C:
			return batch
		}
	}
	return batch
}

// settle writes a batch of outcomes down, each kind in one statement, and tries
// until it could or ctx is done. While it tries, leases are renewed by it too;
// the rows of a relay that cannot reach the database for longer than a lease
// are somebody else's, and their outcomes change nothing.
func (w *worker) settle(ctx context.Context, batch []outcome) {
	var published, denied, unknown, back, failed []outcome
	for _, o := range batch {
		switch {
		case o.err == nil:
			published = append(published, o)
		case errors.Is(o.err, errTooOld), errors.Is(o.err, errKiller):
			failed = append(failed, o)
		case errors.Is(o.err, ErrUnreachable):
			w.counts.GivenBack.Add(1)
			back = append(back, o)
		case errors.Is(o.err, ErrUnroutable):
			w.counts.Unroutable.Add(1)
			denied = append(denied, o)
		case errors.Is(o.err, ErrRefused):
			w.counts.Refused.Add(1)
			denied = append(denied, o)
		case errors.Is(o.err, ErrMisconfigured):
			w.counts.Misconfigured.Add(1)
			if o.alone { // then it is this message that the broker closes the channel for
				denied = append(denied, o)
			} else {
				unknown = append(unknown, o)
			}
		default: // ErrUnknown, and whatever a publisher says that we do not know
			w.counts.Unknown.Add(1)
			unknown = append(unknown, o)
		}
	}
	if len(published) > 0 {
		if err := w.observe(ctx, StepConfirmed, rowsOf(published)); err != nil {
			for i := range published {
				published[i].err = fmt.Errorf("%w: %w", ErrUnknown, err)
			}
			unknown, published = append(unknown, published...), nil
		}
	}
	w.noteMisconfigured(batch, len(published) > 0)

	done := w.write(ctx, publishedSQL, published)
	w.counts.Published.Add(int64(len(done)))
	w.write(ctx, deniedSQL, denied, w.Budget, w.Backoff, w.BackoffCap)
	w.write(ctx, unknownSQL, unknown, w.Resend)
	w.write(ctx, givenBackSQL, back)
	w.write(ctx, failedSQL, failed)
	if len(done) > 0 && w.Observe != nil {
		ids := make([]string, len(done))
		for i, r := range done {
			ids[i] = r.ID
		}
		if err := w.Observe(ctx, StepSettled, ids); err != nil {
			w.Logger.Warn("observing a settled batch failed; nothing is left to undo", "err", err)
		}
	}
	if len(unknown) > 0 {
		w.Logger.Warn("outcome unknown, sending again with the same id",
			"messages", len(unknown), "message_id", unknown[0].ID, "err", unknown[0].err)
	}
	if w.Ordered {
		w.Wake() // the next of each aggregate may go now
	}
}

// settledRow is a row as a settle statement left it.
type settledRow struct {
	ID, AggregateID, Type, Status string
	Attempts                      int
	LastError                     string
}

// write runs one settle statement until it succeeds or ctx is done, and returns
// the rows that it changed.
func (w *worker) write(ctx context.Context, sql string, outcomes []outcome, args ...any) []settledRow {
	if len(outcomes) == 0 {
		return nil
	}
	for failures := 0; ; {
		ids, claims, errs := w.hand.claims(outcomes)
		changed, err := w.try(ctx, sql, append([]any{ids, claims, errs}, args...))
		if err == nil {
			again := w.hand.letGo(outcomes, claims)
			for _, o := range again {
				w.outcomes <- o // its place in the channel is free: it came from there
			}
			w.settledAs(changed, len(outcomes)-len(again))
			return changed
		}
		failures++
		if failures == 1 {
			w.Logger.Warn("relay cannot write outcomes down, trying again", "messages", len(outcomes), "err", err)
		}
		if !wait(ctx, min(w.pause(failures), time.Second)) {
			return nil
		}
		if time.Since(w.renewedAt) >= w.Lease/3 {
			w.renew(ctx)
		}
	}
}

// try runs a settle statement once. A database that does not even refuse must
// not keep the leases from being renewed.
func (w *worker) try(ctx context.Context, sql string, args []any) ([]settledRow, error) {
	ctx, cancel := context.WithTimeout(ctx, w.Lease/3)
	defer cancel()
	rows, err := w.DB.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[settledRow])
}

// settledAs counts and logs what a settle statement did.
func (w *worker) settledAs(rows []settledRow, asked int) {
	if lost := asked - len(rows); lost > 0 {
		w.counts.LeaseLost.Add(int64(lost))
		w.Logger.Warn("claim lost: the lease ran out and the rows are not ours to settle", "messages", lost)
	}
	again := 0
	for _, r := range rows {
		switch {
		case r.Status == "Failed":
			w.counts.Failed.Add(1)
			w.Logger.Error("message failed and is kept: requeue or discard it", "message_id", r.ID,
				"topic", r.Type, "aggregate", r.AggregateID, "attempt", r.Attempts, "err", r.LastError)
		case r.Attempts > 0 && r.LastError != "":
			again++
		}
	}
	if again > 0 {
		r := rows[0]
		w.Logger.Warn("messages not taken by the broker, trying again later",
			"messages", again, "message_id", r.ID, "attempt", r.Attempts, "err", r.LastError)
	}
}

// noteMisconfigured counts the times in a row that the broker closed the channel,
// until the first confirm.
func (w *worker) noteMisconfigured(batch []outcome, confirmed bool) {
	if confirmed {
		if w.misconfigured.Swap(0) > 0 {
			select {
			case w.healed <- struct{}{}:
			default:
			}
		}
		return
	}
	for _, o := range batch {
		if errors.Is(o.err, ErrMisconfigured) {
			w.misconfigured.Add(1)
			return
		}
	}
}

// renew extends the leases of everything in hand, by claim id.
func (w *worker) renew(ctx context.Context) {
	w.renewedAt = time.Now()
	ids, claims := w.hand.all()
	if len(ids) == 0 {
		return
	}
	trusted := time.Now().Add(w.trust()) // taken before the request, as for a claim
	ctx, cancel := context.WithTimeout(ctx, w.Lease/3)
	defer cancel()
	rows, err := w.DB.Query(ctx, renewSQL, ids, claims, w.Lease)
	if err == nil {
		kept := make(map[string]bool, len(ids))
		var id string
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error { kept[id] = true; return nil })
		if err == nil {
			if lost := w.hand.renewed(ids, claims, kept, trusted); lost > 0 {
				w.Logger.Warn("leases lost before they could be renewed", "messages", lost)
			}
			return
		}
	}
	w.Logger.Warn("leases not renewed", "messages", len(ids), "err", err)
}

func rowsOf(outcomes []outcome) []*row {
	rows := make([]*row, len(outcomes))
	for i, o := range outcomes {
		rows[i] = o.row
	}
	return rows
}
