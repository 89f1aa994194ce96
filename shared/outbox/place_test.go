package outbox

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/internal/testenv"
)

// A claim begins where the last one ended. What turns up a little before that is
// claimed all the same, and what turns up long before it when a claim begins at
// the beginning again.
func TestClaimGoesOnFromTheLast(t *testing.T) {
	t.Parallel()
	db := history(t, 0, 20)
	if _, err := db.Exec(t.Context(), `update outbox_messages set next_attempt_at = now() - interval '1 minute'`); err != nil {
		t.Fatal(err)
	}
	put := func(id string, before string) {
		t.Helper()
		_, err := db.Exec(t.Context(), `
insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, next_attempt_at)
select $1, $1, 1, 'order.created', '{}', now(), max(next_attempt_at) - $2::interval from outbox_messages`, id, before)
		if err != nil {
			t.Fatal(err)
		}
	}
	w := &worker{Relay: &Relay{DB: db}, Lease: time.Minute, MaxAge: time.Hour, Poll: time.Hour}
	w.sql.claim = claimStatement(false)
	claim := func(limit int) (ids []string) {
		t.Helper()
		rows, err := w.claim(t.Context(), limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		return ids
	}
	seen := map[string]bool{}
	for _, limit := range []int{10, 10} {
		ids := claim(limit)
		if len(ids) != limit {
			t.Fatalf("%d of %d rows claimed", len(ids), limit)
		}
		for _, id := range ids {
			seen[id] = true
		}
	}
	if len(seen) != 20 {
		t.Fatalf("%d different rows claimed, want 20", len(seen))
	}
	put("late", "500 milliseconds")
	put("new", "-5 seconds")
	if got := claim(10); len(got) != 1 || got[0] != "new" {
		t.Errorf("after full claims: %v, want what is newer", got)
	}
	if got := claim(10); len(got) != 0 {
		t.Errorf("%v, want nothing: what is left is more than a second older than the last", got)
	}
	put("a moment late", "900 milliseconds")
	if got := claim(10); len(got) != 1 || got[0] != "a moment late" {
		t.Errorf("after a claim that found everything: %v, want what is a moment older", got)
	}
	put("very late", "1 hour")
	if got := claim(10); len(got) != 0 {
		t.Errorf("%v, want nothing before the next look from the beginning", got)
	}
	w.sweepAt = time.Now()
	if got := claim(10); len(got) != 2 || got[0] != "very late" || got[1] != "late" {
		t.Errorf("from the beginning: %v, want what was left behind, oldest first", got)
	}
}

// An old snapshot keeps what has left in the index. A claim that goes on from the
// last does not read it.
func TestOldSnapshotIsNotInTheWayOfClaims(t *testing.T) {
	t.Parallel()
	const left = 5000
	db := testenv.Pool(t, testenv.Database(t))
	fill(t, db, 0, left)
	old, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(t.Context()) }()
	if _, err := old.Exec(t.Context(), `select count(*) from outbox_messages`); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`update outbox_messages set status = 'Published', published_at = now()`,
		`vacuum outbox_messages`,
		`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at) values ('z', 'z', 1, 'order.created', '{}', now())`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var from time.Time
	if err := db.QueryRow(t.Context(), `select next_attempt_at - interval '1 microsecond' from outbox_messages where event_id = 'z'`).Scan(&from); err != nil {
		t.Fatal(err)
	}
	all, some := pagesOfAClaim(t, db, time.Time{}), pagesOfAClaim(t, db, from)
	t.Logf("%d pages from the beginning, %d from the last", all, some)
	if all < 10*some {
		t.Errorf("a claim reads %d pages from the last one on, and %d from the beginning: want a tenth at most", some, all)
	}
}
