package outbox

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/baton/internal/testenv"
)

// model is the table with the statements of the relay, in memory, so that a
// relay can run on a clock that the test owns. TestModelIsTheTable compares it
// with PostgreSQL.
//
// A statement is one step: what two of them would do to each other while both
// run is not modelled, nor are the order of the rows of an update, payloads,
// headers, and jitter.
type model struct {
	mu      sync.Mutex
	changed chan struct{} // has room for one: a statement was run; nil if nobody waits
	rows    []*modelRow
	before  func(sql string, r *modelRow, lastError string) // called when a statement is about to settle a row
}

// modelRow is a row. Zero times are nulls.
type modelRow struct {
	ID, Aggregate         string
	Sequence              int64
	Status, LastError     string
	Attempts, Claims      int
	Lone                  int
	Due, Created          time.Time
	LockedBy              string
	LockedUntil           time.Time
	PublishedAt, FailedAt time.Time
}

// access is a relay's way to the table. It can be lost.
type access struct {
	*model
	broken func(sql string) error // nil while it works
}

var _ DB = (*access)(nil)

func (a *access) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	panic("a relay executes nothing")
}

func (a *access) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := a.Query(ctx, sql, args...)
	if err != nil {
		return failedRow{err}
	}
	return rows.(*answer)
}

func (a *access) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if a.broken != nil {
		if err := a.broken(sql); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case a.changed <- struct{}{}: // whoever waits looks when it has the lock
	default:
	}
	return a.run(sql, args, time.Now()), nil
}

// run carries out the statement sql at the time now.
func (m *model) run(sql string, args []any, now time.Time) *answer {
	ordered := strings.Contains(sql, inOrder)
	switch {
	case strings.HasSuffix(sql, takeAloneSQL):
		id := args[0].(string)
		return m.take(now, args, true, 1, func(r *modelRow) bool { return r.ID == id })
	case strings.HasSuffix(sql, takeSQL):
		return m.take(now, args, false, args[0].(int), func(r *modelRow) bool {
			from := args[4].(time.Time)
			isAfter := r.Due.After(from) || r.Due.Equal(from) && r.ID > args[5].(string)
			return r.Claims < 2 && isAfter && (!ordered || m.isNext(r))
		})
	case strings.HasPrefix(sql, "\nselect head.event_id"):
		for _, r := range m.dueRows(now) {
			if r.Claims >= 2 && (!ordered || m.isNext(r)) {
				return &answer{rows: [][]any{{r.ID}}}
			}
		}
		return &answer{}
	case sql == renewSQL:
		a := &answer{}
		for i, id := range args[0].([]string) {
			if r := m.row(id); r.Status == "Processing" && r.LockedBy == args[1].([]string)[i] {
				r.LockedUntil = now.Add(args[2].(time.Duration))
				a.rows = append(a.rows, []any{r.ID})
			}
		}
		return a
	}
	return m.settle(sql, args, now)
}

func (m *model) row(id string) *modelRow {
	i := slices.IndexFunc(m.rows, func(r *modelRow) bool { return r.ID == id })
	return m.rows[i]
}

func (m *model) dueRows(now time.Time) []*modelRow {
	var due []*modelRow
	for _, r := range m.rows {
		if r.PublishedAt.IsZero() && r.FailedAt.IsZero() && !r.Due.After(now) && (r.Status == "Pending" || r.LockedUntil.Before(now)) {
			due = append(due, r)
		}
	}
	sort.SliceStable(due, func(i, j int) bool {
		if !due[i].Due.Equal(due[j].Due) {
			return due[i].Due.Before(due[j].Due)
		}
		return due[i].ID < due[j].ID
	})
	return due
}

func (m *model) isNext(r *modelRow) bool {
	return !slices.ContainsFunc(m.rows, func(p *modelRow) bool {
		return p.Aggregate == r.Aggregate && p.Sequence < r.Sequence && p.PublishedAt.IsZero()
	})
}

func (m *model) take(now time.Time, args []any, alone bool, limit int, which func(*modelRow) bool) *answer {
	a := &answer{}
	for _, r := range m.dueRows(now) {
		if len(a.rows) == limit || !which(r) {
			continue
		}
		r.Status, r.LockedBy, r.LockedUntil = "Processing", args[1].(string), now.Add(args[2].(time.Duration))
		r.Claims++
		if alone {
			r.Lone++
		}
		tooOld := r.Created.Before(now.Add(-args[3].(time.Duration)))
		a.rows = append(a.rows, []any{r.ID, "order.created", r.Aggregate, r.Sequence, r.Created, []byte("{}"), "{}",
			r.Attempts, r.Lone, tooOld, r.Due})
	}
	return a
}

func (m *model) settle(sql string, args []any, now time.Time) *answer {
	a := &answer{}
	ids, claims, texts := args[0].([]string), args[1].([]string), args[2].([]string)
	for i, id := range ids {
		r := m.row(id)
		if r.LockedBy != claims[i] || r.Status != "Processing" {
			continue
		}
		if m.before != nil {
			m.before(sql, r, texts[i])
		}
		r.Status, r.LockedBy, r.LockedUntil = "Pending", "", time.Time{}
		switch sql {
		case publishedSQL:
			r.Status, r.PublishedAt, r.LastError, r.Claims, r.Lone = "Published", now, "", 0, 0
		case deniedSQL:
			budget, backoff, limit := args[3].(int), args[4].(time.Duration), args[5].(time.Duration)
			r.Due = now.Add(min(limit, backoff*time.Duration(math.Pow(2, float64(r.Attempts)))))
			r.Attempts++
			r.LastError, r.Claims, r.Lone = texts[i], 0, 0
			if r.Attempts >= budget {
				r.Status, r.FailedAt = "Failed", now
			}
		case unknownSQL:
			r.LastError = texts[i]
			r.Due = now.Add(args[3].(time.Duration) * time.Duration(math.Pow(2, float64(min(max(r.Claims-1, 0), 4)))))
			r.Lone = max(r.Lone-1, 0)
		case givenBackSQL:
			r.Claims, r.Lone = max(r.Claims-1, 0), max(r.Lone-1, 0)
		case failedSQL:
			r.Status, r.FailedAt, r.LastError = "Failed", now, texts[i]
		default:
			panic("not modelled: " + sql)
		}
		a.rows = append(a.rows, []any{r.ID, r.Aggregate, "order.created", r.Status, r.Attempts, r.LastError})
	}
	return a
}

// answer is the result of a statement, as pgx has it.
type answer struct {
	rows [][]any
	next int
}

func (a *answer) Next() bool { a.next++; return a.next <= len(a.rows) }

func (a *answer) Scan(into ...any) error {
	if a.next == 0 && !a.Next() { // as a single row
		return pgx.ErrNoRows
	}
	for i, v := range a.rows[a.next-1] {
		reflect.ValueOf(into[i]).Elem().Set(reflect.ValueOf(v))
	}
	return nil
}

func (a *answer) Close()                                       {}
func (a *answer) Err() error                                   { return nil }
func (a *answer) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (a *answer) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (a *answer) Values() ([]any, error)                       { return a.rows[a.next-1], nil }
func (a *answer) RawValues() [][]byte                          { return nil }
func (a *answer) Conn() *pgx.Conn                              { return nil }
func (a *answer) TypeMap() *pgtype.Map                         { return nil }

type failedRow struct{ err error }

func (f failedRow) Scan(...any) error { return f.err }

// The model says of every statement and every state of a row what PostgreSQL
// says.
func TestModelIsTheTable(t *testing.T) {
	t.Parallel()
	db := testenv.Schema(t)
	if _, err := db.Exec(t.Context(), Schema); err != nil {
		t.Fatal(err)
	}
	var now time.Time
	if err := db.QueryRow(t.Context(), `select now()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	const mine, others = "me:1", "other:1"
	ids := func(m *model) (all []string) {
		for _, r := range m.rows {
			all = append(all, r.ID)
		}
		return all
	}
	several := func(s string, n int) []string { return slices.Repeat([]string{s}, n) }
	for name, sql := range map[string]string{
		"claim": fmt.Sprintf(claimSQL, ""), "claim in order": fmt.Sprintf(claimSQL, inOrder), "claim alone": claimAloneSQL,
		"suspect": fmt.Sprintf(suspectSQL, ""), "suspect in order": fmt.Sprintf(suspectSQL, inOrder), "renew": renewSQL,
		"published": publishedSQL, "denied": deniedSQL, "unknown": unknownSQL, "given back": givenBackSQL, "failed": failedSQL,
	} {
		m := everyRow(now, mine, others)
		if _, err := db.Exec(t.Context(), `truncate outbox_messages`); err != nil {
			t.Fatal(err)
		}
		for _, r := range m.rows {
			insertRow(t, db, r)
		}
		all := ids(m)
		claims, texts := several(mine, len(all)), several("no", len(all))
		args := map[string][]any{
			"claim alone": {"pending-c2-l1", mine, 30 * time.Second, time.Hour},
			"suspect":     nil, "suspect in order": nil,
			"renew":     {all, claims, 30 * time.Second},
			"published": {all, claims, texts},
			"denied":    {all, claims, texts, 3, time.Hour, 2 * time.Hour},
			"unknown":   {all, claims, texts, time.Hour}, "given back": {all, claims, texts}, "failed": {all, claims, texts},
		}
		a, ok := args[name]
		if !ok {
			a = []any{7, mine, 30 * time.Second, time.Hour, time.Time{}, ""}
		}
		rows, err := db.Query(t.Context(), sql, a...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (string, error) {
			v, err := r.Values()
			return fmt.Sprint(v[0]), err
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var want []string
		for _, r := range m.run(sql, a, now).rows {
			want = append(want, r[0].(string))
		}
		slices.Sort(got)
		slices.Sort(want)
		if d := cmp.Diff(got, want); d != "" {
			t.Errorf("%s returns: -PostgreSQL +model\n%s", name, d)
		}
		if len(got) == 0 {
			t.Errorf("%s finds nothing", name)
		}
		if d := cmp.Diff(readRows(t, db), m.rows, closeTimes(now), cmpopts.SortSlices(func(a, b *modelRow) bool { return a.ID < b.ID })); d != "" {
			t.Errorf("%s leaves: -PostgreSQL +model\n%s", name, d)
		}
	}
}

// closeTimes takes times as equal that differ by jitter, a fifth of the wait, and
// by how long the test takes. Waits that are told apart double.
func closeTimes(now time.Time) cmp.Option {
	return cmp.Comparer(func(a, b time.Time) bool {
		return a.IsZero() == b.IsZero() && a.Sub(b).Abs() <= max(b.Sub(now).Abs()/4, 20*time.Second)
	})
}

// everyRow has a row of each state that matters to a statement.
func everyRow(now time.Time, mine, others string) *model {
	m := &model{}
	add := func(name string, r modelRow) {
		r.ID, r.Sequence = name, max(r.Sequence, 1)
		if r.Aggregate == "" {
			r.Aggregate = "of " + name
		}
		if r.Created.IsZero() {
			r.Created = now.Add(-time.Minute)
		}
		if r.Due.IsZero() {
			r.Due = now.Add(-time.Minute - time.Duration(len(m.rows))*time.Second)
		}
		m.rows = append(m.rows, &r)
	}
	for _, claims := range []int{0, 1, 2, 5, 9} {
		for _, lone := range []int{0, 1} {
			suffix := fmt.Sprintf("-c%d-l%d", claims, lone)
			add("pending"+suffix, modelRow{Status: "Pending", Claims: claims, Lone: lone})
			add("mine"+suffix, modelRow{Status: "Processing", LockedBy: mine, LockedUntil: now.Add(time.Hour), Claims: claims, Lone: lone, Attempts: claims})
		}
	}
	add("later", modelRow{Status: "Pending", Due: now.Add(time.Hour)})
	add("old", modelRow{Status: "Pending", Created: now.Add(-2 * time.Hour), Due: now.Add(-2 * time.Hour)})
	add("expired", modelRow{Status: "Processing", LockedBy: others, LockedUntil: now.Add(-time.Minute)})
	add("others", modelRow{Status: "Processing", LockedBy: others, LockedUntil: now.Add(time.Hour)})
	add("published", modelRow{Status: "Published", PublishedAt: now.Add(-time.Minute), Aggregate: "in order"})
	add("failed", modelRow{Status: "Failed", FailedAt: now.Add(-time.Minute), Attempts: 3, LastError: "no", Aggregate: "blocked"})
	add("second", modelRow{Status: "Pending", Aggregate: "in order", Sequence: 2})
	add("third", modelRow{Status: "Pending", Aggregate: "in order", Sequence: 3})
	add("behind", modelRow{Status: "Pending", Aggregate: "blocked", Sequence: 2, Claims: 3})
	return m
}

func insertRow(t *testing.T, db DB, r *modelRow) {
	t.Helper()
	null := func(at time.Time) *time.Time {
		if at.IsZero() {
			return nil
		}
		return &at
	}
	_, err := db.Exec(t.Context(), `insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at,
		  created_at, status, last_error, attempt_count, claim_count, lone_count, next_attempt_at, locked_by, locked_until, published_at, failed_at)
		values ($1, $2, $3, 'order.created', '{}', $4, $4, $5, nullif($6, ''), $7, $8, $9, $10, nullif($11, ''), $12, $13, $14)`,
		r.ID, r.Aggregate, r.Sequence, r.Created, r.Status, r.LastError, r.Attempts, r.Claims, r.Lone, r.Due,
		r.LockedBy, null(r.LockedUntil), null(r.PublishedAt), null(r.FailedAt))
	if err != nil {
		t.Fatal(err)
	}
}

func readRows(t *testing.T, db DB) []*modelRow {
	t.Helper()
	rows, err := db.Query(t.Context(), `select event_id, aggregate_id, sequence, status, coalesce(last_error, ''), attempt_count, claim_count,
		lone_count, next_attempt_at, created_at, coalesce(locked_by, ''), locked_until, published_at, failed_at from outbox_messages`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*modelRow, error) {
		var r modelRow
		var until, published, failed *time.Time
		err := row.Scan(&r.ID, &r.Aggregate, &r.Sequence, &r.Status, &r.LastError, &r.Attempts, &r.Claims, &r.Lone, &r.Due, &r.Created,
			&r.LockedBy, &until, &published, &failed)
		for from, to := range map[**time.Time]*time.Time{&until: &r.LockedUntil, &published: &r.PublishedAt, &failed: &r.FailedAt} {
			if *from != nil {
				*to = **from
			}
		}
		return &r, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
