package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what the relay and the functions of an operator need: a pool, a
// connection or a transaction of pgx.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// killerAfter is after how many claims made for it alone, all without an
// outcome, a row is Failed. From its third claim without an outcome on a row is
// a suspect and claimed alone: that 2 is a literal in the statements below.
const killerAfter = 10

// row is a message in this relay's hands.
type row struct {
	Message
	claim    string    // claim id: every statement about the row carries it
	trusted  time.Time // until when the claim may be believed without renewing it
	alone    bool      // nothing else is in flight while this one is
	lost     bool      // a renewal found that somebody else has it
	due      time.Time // next_attempt_at
	attempts int
	tooOld   bool
	killer   bool

	unreadable error // what is in its headers cannot be sent
}

// due is what may be claimed: Pending and its time has come, or Processing and
// its lease has run out. The states are literals and the first two conditions
// those of ix_outbox_dispatch, so that a generic plan uses that index too.
const due = `
  o.published_at is null and o.failed_at is null and o.next_attempt_at <= now()
  and (o.status = 'Pending' or o.locked_until < now())`

// inOrder leaves only the lowest open sequence of each aggregate. A Failed row
// is open: it blocks its aggregate until it is requeued or discarded.
const inOrder = `
  and not exists (select 1 from outbox_messages p
    where p.aggregate_id = o.aggregate_id and p.sequence < o.sequence and p.published_at is null)`

// The claim locks its candidates in a materialised CTE, so that no plan can run
// it twice and take more than the limit, and skips rows that another relay is
// claiming at this moment. It is one statement, hence one short transaction:
// the lease, not the lock, holds the rows from here on.
//
// It changes no indexed column, which makes it a HOT update.
const claimSQL = `
with candidates as materialized (
  select o.event_id from outbox_messages o
  where ` + due + ` and o.claim_count < 2 and (o.next_attempt_at, o.event_id) > ($5, $6) %s
  order by o.next_attempt_at, o.event_id
  limit $1
  for update skip locked
)` + takeSQL

// A suspect stands near the head: a claim does not move a row, so whatever was
// claimed without an outcome is older than what waits. Hence the bounded look.
const suspectSQL = `
select head.event_id from (
  select o.event_id, o.claim_count, o.next_attempt_at from outbox_messages o
  where ` + due + ` %s
  order by o.next_attempt_at, o.event_id
  limit 5000
) head where head.claim_count >= 2
order by head.next_attempt_at, head.event_id
limit 1`

const claimAloneSQL = `
with candidates as materialized (
  select o.event_id from outbox_messages o
  where ` + due + ` and o.event_id = $1
  for update skip locked
)` + takeAloneSQL

const takeSQL = `
update outbox_messages o
set status = 'Processing', locked_by = $2, locked_until = now() + $3::interval,
    claim_count = o.claim_count + 1
where o.event_id = any (array (select event_id from candidates))` + returningSQL

const takeAloneSQL = `
update outbox_messages o
set status = 'Processing', locked_by = $2, locked_until = now() + $3::interval,
    claim_count = o.claim_count + 1, lone_count = o.lone_count + 1
where o.event_id = any (array (select event_id from candidates))` + returningSQL

// An update returns rows in no order: the caller sorts.
const returningSQL = `
returning o.event_id, o.event_type, o.aggregate_id, o.sequence, o.occurred_at, o.headers,
  case when o.lone_count > 10 then '{}' else o.payload::text end, -- it may be the payload that kills
  o.attempt_count, o.lone_count, o.created_at < now() - $4::interval, o.next_attempt_at`

// renewSQL extends the lease of rows that are still this relay's.
const renewSQL = `
update outbox_messages o
set locked_until = now() + $3::interval
from unnest((select $1::text[]), (select $2::text[])) as mine (event_id, claim)
where o.event_id = mine.event_id and o.locked_by = mine.claim
returning o.event_id`

// An outcome is settled with the claim id in the condition: no row affected
// means that the lease ran out and the row is somebody else's now. Only a row that
// is Processing has a claim id, by outbox_claimed. The state is not asked for: the
// statistics of a quiet moment know no row that is Processing, and for the one
// that it then expects the planner would try every id on every claimed row. The
// selects hide how many ids there are, so that each is looked up by the key.
const settled = `
from unnest((select $1::text[]), (select $2::text[]), (select $3::text[])) as s (event_id, claim, error)
where o.event_id = s.event_id and o.locked_by = s.claim
returning o.event_id, o.aggregate_id, o.event_type, o.status, o.attempt_count, coalesce(o.last_error, '')`

const publishedSQL = `
update outbox_messages o
set status = 'Published', published_at = now(), locked_by = null, locked_until = null,
    last_error = null, claim_count = 0, lone_count = 0` + settled

// Unroutable and refused: the broker had it and said no. The backoff doubles
// from $5 to $6, give or take a fifth so that rows that failed together do not
// come back together.
const deniedSQL = `
update outbox_messages o
set status = case when o.attempt_count + 1 >= $4 then 'Failed' else 'Pending' end,
    failed_at = case when o.attempt_count + 1 >= $4 then now() end,
    attempt_count = o.attempt_count + 1, last_error = s.error,
    next_attempt_at = now() + least($6::interval, $5::interval * power(2, least(o.attempt_count, 30))) * (0.8 + 0.4 * random()),
    locked_by = null, locked_until = null, claim_count = 0, lone_count = 0` + settled

// Unknown: the broker may have it. The wait doubles with each time in a row, up
// to sixteenfold, so that a message which costs its session every time leaves
// room for others. The claim stays counted, because a row that
// three claims brought no answer for is sent alone; a claim made alone is not
// held against it, because its relay lives.
const unknownSQL = `
update outbox_messages o
set status = 'Pending', last_error = s.error,
    next_attempt_at = now() + $4::interval * power(2, least(greatest(o.claim_count - 1, 0), 4)) * (0.8 + 0.4 * random()),
    locked_by = null, locked_until = null, lone_count = greatest(o.lone_count - 1, 0)` + settled

// Given back: never sent, so the claim counts for nothing.
const givenBackSQL = `
update outbox_messages o
set status = 'Pending', locked_by = null, locked_until = null,
    claim_count = greatest(o.claim_count - 1, 0), lone_count = greatest(o.lone_count - 1, 0)` + settled

const failedSQL = `
update outbox_messages o
set status = 'Failed', failed_at = now(), last_error = s.error, locked_by = null, locked_until = null` + settled

// place is a place in the order of claims.
type place struct {
	due time.Time
	id  string
}

// lateCommit is how long before it is seen a row may come into being without
// waiting for a claim from the beginning.
const lateCommit = time.Second

// claim takes up to limit rows that are due, oldest first.
//
// It begins to look where the last claim ended. What is before that is in flight
// or has left, and its index entries are stepped over by every claim that begins
// before them, until a vacuum may remove them: that is long when somebody keeps a
// snapshot open. A row can still turn up behind: a transaction took its time to
// commit, a lease has run out, a claim was given back. So a claim that found
// everything makes the next begin a little earlier, and once per Poll one begins
// at the beginning, unless that takes long.
func (w *worker) claim(ctx context.Context, limit int) ([]*row, error) {
	from, begin := w.from, time.Now()
	sweep := w.Ordered || !begin.Before(w.sweepAt) // rows in order may have waited for others, anywhere
	if sweep {
		from = place{}
	}
	rows, err := w.take(ctx, w.sql.claim, false, limit, from.due, from.id)
	if err != nil {
		return nil, err
	}
	if sweep {
		w.sweepAt = begin.Add(max(w.Poll, 20*time.Since(begin)))
	}
	if len(rows) > 0 {
		last := place{rows[len(rows)-1].due, rows[len(rows)-1].ID}
		if len(rows) < limit {
			last = place{due: last.due.Add(-lateCommit)}
		}
		if last.due.After(w.from.due) || last.due.Equal(w.from.due) && last.id > w.from.id {
			w.from = last
		}
	}
	return rows, nil
}

// suspect looks for a row that several claims brought no outcome for.
func (w *worker) suspect(ctx context.Context, id *string) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.Lease/3)
	defer cancel()
	err = w.DB.QueryRow(ctx, w.sql.suspect).Scan(id)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look for suspects: %w", err)
	}
	return true, nil
}

// claimAlone takes the one row id, if it is still due.
func (w *worker) claimAlone(ctx context.Context, id string) ([]*row, error) {
	return w.take(ctx, claimAloneSQL, true, id)
}

// take runs a claim of what, with arguments of its own at the end.
func (w *worker) take(ctx context.Context, sql string, alone bool, what any, more ...any) ([]*row, error) {
	// A claim whose answer nobody waits for would hold its rows for a lease.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.Lease/3)
	defer cancel()
	claim := w.newClaimID()
	// Before the request: the database starts the lease no earlier than this.
	begin := time.Now()
	trusted := begin.Add(w.trust())
	rows, err := w.DB.Query(ctx, sql, append([]any{what, claim, w.Lease, w.MaxAge}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(got pgx.CollectableRow) (*row, error) {
		r := &row{claim: claim, trusted: trusted, alone: alone}
		var headers []byte
		var payload string
		var lone int
		err := got.Scan(&r.ID, &r.Type, &r.AggregateID, &r.Sequence, &r.OccurredAt, &headers, &payload,
			&r.attempts, &lone, &r.tooOld, &r.due)
		if err == nil && string(headers) != "{}" {
			r.unreadable = json.Unmarshal(headers, &r.Headers) // somebody else's row: ours hold text only
		}
		r.Payload, r.killer = []byte(payload), lone > killerAfter
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	w.counts.Claims.Add(1)
	w.counts.ClaimTime.Add(int64(time.Since(begin)))
	slices.SortFunc(all, func(a, b *row) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}
