package outbox

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/testenv"
)

// history fills a table as it stands after a while: much published, some to do.
func history(t *testing.T, published, pending int) *pgxpool.Pool {
	t.Helper()
	db := testenv.Schema(t)
	fill(t, db, published, pending)
	return db
}

func fill(t *testing.T, db *pgxpool.Pool, published, pending int) {
	t.Helper()
	for _, sql := range []string{
		Schema,
		fmt.Sprintf(`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, status, published_at)
			select 'p' || n, 'p' || n, 1, 'order.created', '{}', now(), 'Published', now() from generate_series(1, %d) n`, published),
		fmt.Sprintf(`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at)
			select 'm' || to_char(n, 'FM00000'), 'm' || n, 1, 'order.created', '{"amount": 199.00, "customerId": "C10086"}', now() from generate_series(1, %d) n`, pending),
		`vacuum analyze outbox_messages`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

func claimStatement(ordered bool) string {
	order := ""
	if ordered {
		order = inOrder
	}
	return fmt.Sprintf(claimSQL, order)
}

// B92: the hot statements use their indexes also under a generic plan, which
// knows no parameter.
func TestHotStatementsUseTheirIndexes(t *testing.T) {
	t.Parallel()
	db := history(t, 200_000, 20)
	const key, dispatch = "outbox_messages_pkey", "ix_outbox_dispatch"
	ofAggregate, prune := "outbox_messages_aggregate_id_sequence_key", "ix_outbox_prune"
	ids := make([]string, settleAtOnce)
	for i := range ids {
		ids[i] = fmt.Sprintf("p%d", i)
	}
	claim := []any{500, "c", time.Minute, time.Hour, time.Time{}, ""}
	settle := func(args ...any) []any { return append([]any{ids, ids, ids}, args...) }
	one, oneArgs := inserted(t, 1)
	many, manyArgs := inserted(t, 250)
	for name, s := range map[string]testenv.Hot{
		"enqueue one":     {SQL: one, Args: oneArgs},
		"enqueue many":    {SQL: many, Args: manyArgs},
		"claim":           {SQL: claimStatement(false), Args: claim, Indexes: []string{dispatch, key}},
		"claim ordered":   {SQL: claimStatement(true), Args: claim, Indexes: []string{dispatch, ofAggregate, key}},
		"claim alone":     {SQL: claimAloneSQL, Args: append([]any{"p1"}, claim[1:4]...), Indexes: []string{key}},
		"suspect":         {SQL: fmt.Sprintf(suspectSQL, ""), Indexes: []string{dispatch}, Sorts: true},
		"suspect ordered": {SQL: fmt.Sprintf(suspectSQL, inOrder), Indexes: []string{dispatch, ofAggregate}, Sorts: true},
		"published":       {SQL: publishedSQL, Args: settle(), Indexes: []string{key}},
		"denied":          {SQL: deniedSQL, Args: settle(12, time.Second, time.Minute), Indexes: []string{key}},
		"unknown":         {SQL: unknownSQL, Args: settle(time.Second), Indexes: []string{key}},
		"given back":      {SQL: givenBackSQL, Args: settle(), Indexes: []string{key}},
		"failed":          {SQL: failedSQL, Args: settle(), Indexes: []string{key}},
		"renew":           {SQL: renewSQL, Args: []any{ids, ids, time.Minute}, Indexes: []string{key}},
		"of an aggregate": {SQL: ofAggregateSQL, Args: []any{"p1"}, Indexes: []string{ofAggregate}},
		"stats":           {SQL: statsSQL, Indexes: []string{dispatch, ofAggregate}, Open: true, Sorts: true},
		"prune":           {SQL: pruneSQL, Args: []any{time.Hour, pruneAtOnce}, Indexes: []string{prune, key}},
	} {
		t.Run(name, func(t *testing.T) { s.Check(t, db) })
	}
}

// Settling takes a look at each row that is settled and no more, also on a table
// of a few thousand rows whose statistics are of a moment when none was claimed.
func TestSettlingAfterAQuietMoment(t *testing.T) {
	t.Parallel()
	db := history(t, 0, 5000)
	ids := make([]string, settleAtOnce)
	for i := range ids {
		ids[i] = fmt.Sprintf("m%05d", i+1)
	}
	for name, s := range map[string]testenv.Hot{
		"published":  {SQL: publishedSQL, Args: []any{ids, ids, ids}},
		"denied":     {SQL: deniedSQL, Args: []any{ids, ids, ids, 12, time.Second, time.Minute}},
		"unknown":    {SQL: unknownSQL, Args: []any{ids, ids, ids, time.Second}},
		"given back": {SQL: givenBackSQL, Args: []any{ids, ids, ids}},
		"failed":     {SQL: failedSQL, Args: []any{ids, ids, ids}},
		"renew":      {SQL: renewSQL, Args: []any{ids, ids, time.Minute}},
	} {
		s.Indexes = []string{"outbox_messages_pkey"}
		t.Run(name, func(t *testing.T) { s.Check(t, db) })
	}
}

// inserted is the statement that stores n messages, and its arguments.
func inserted(t *testing.T, n int) (sql string, args []any) {
	t.Helper()
	msgs := make([]Message, n)
	for i := range msgs {
		msgs[i] = Message{ID: "m", Type: "order.created", AggregateID: "a", Sequence: 1, OccurredAt: time.Now(), Payload: []byte("{}")}
	}
	sql, args, err := insert(msgs)
	if err != nil {
		t.Fatal(err)
	}
	return sql, args
}

// The claim changes no indexed column and finds room on the page, so that no
// index is written.
func TestClaimsAreHOTUpdates(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	db := history(t, 0, rows)
	w := &worker{Relay: &Relay{DB: db}, Lease: time.Minute, MaxAge: time.Hour}
	w.sql.claim = claimStatement(false)
	before := updates(t, db)
	for taken := 0; taken < rows; {
		got, err := w.claim(t.Context(), 500)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			t.Fatalf("%d rows claimed, want %d", taken, rows)
		}
		taken += len(got)
	}
	var hot, all int64
	testenv.Eventually(t, 20*time.Second, "the statistics", func() error {
		now := updates(t, db)
		hot, all = now[1]-before[1], now[0]-before[0]
		if all < rows {
			return fmt.Errorf("%d updates counted", all)
		}
		return nil
	})
	t.Logf("%d of %d claims were HOT", hot, all)
	if hot < rows*99/100 {
		t.Errorf("%d of %d claims were HOT updates", hot, all)
	}
}

func updates(t *testing.T, db *pgxpool.Pool) (n [2]int64) {
	t.Helper()
	err := db.QueryRow(t.Context(), `select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables
		where relname = 'outbox_messages' and schemaname = current_schema()`).Scan(&n[0], &n[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// B04: no plan makes a claim take more than its limit.
func TestClaimTakesNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	db := history(t, 0, 1000)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	for _, setting := range []string{"hashjoin", "mergejoin", "hashagg", "sort", "material"} {
		if _, err := tx.Exec(t.Context(), "set local enable_"+setting+" = off"); err != nil {
			t.Fatal(err)
		}
	}
	w := &worker{Relay: &Relay{DB: tx}, Lease: time.Minute, MaxAge: time.Hour}
	w.sql.claim = claimStatement(false)
	got, err := w.claim(t.Context(), 1)
	if err != nil || len(got) != 1 || got[0].ID != "m00001" {
		t.Errorf("claimed %d rows: %v", len(got), err)
	}
}

// What has left does not slow down what is to leave: a vacuum removes its index
// entries although they are few against a table that is kept. By the server's
// defaults it would not.
func TestVacuumClearsTheWayOfClaims(t *testing.T) {
	t.Parallel()
	const kept, left = 200_000, 3000 // of its rows; on less than 2 % of the pages a vacuum would leave out the indexes
	// A database of its own: a transaction of somebody else in the same one would
	// keep the vacuum from removing anything.
	db := testenv.Pool(t, testenv.Database(t))
	fill(t, db, kept, left)
	for _, sql := range []string{
		`update outbox_messages set status = 'Published', published_at = now() where status = 'Pending'`,
		`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at) values ('z', 'z', 1, 'order.created', '{}', now())`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	before := pagesOfAClaim(t, db, time.Time{})
	if before < 10 {
		t.Errorf("a claim reads %d pages before the vacuum: nothing is in its way", before)
	}
	const most = 6 // the index down to its first leaf, and the row
	// Again, if the server itself was looking at the table: an analyze keeps a vacuum
	// from removing what it may still see.
	testenv.Eventually(t, 30*time.Second, "a vacuum that removes what has left", func() error {
		if _, err := db.Exec(t.Context(), `vacuum outbox_messages`); err != nil {
			return err
		}
		after := pagesOfAClaim(t, db, time.Time{})
		t.Logf("a claim reads %d pages before the vacuum and %d after it", before, after)
		if after > most {
			return fmt.Errorf("a claim reads %d pages after the vacuum, want at most %d", after, most)
		}
		return nil
	})
}

// pagesOfAClaim is how many pages the search of a claim reads that begins at from.
func pagesOfAClaim(t *testing.T, db *pgxpool.Pool, from time.Time) (pages int) {
	t.Helper()
	rows, err := db.Query(t.Context(), `explain (analyze, buffers, costs off, timing off, summary off)
		select o.event_id from outbox_messages o where `+due+` and (o.next_attempt_at, o.event_id) > ($1, '') order by o.next_attempt_at, o.event_id limit 500`, pgx.QueryExecModeSimpleProtocol, from)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	found := regexp.MustCompile(`Buffers: shared((?: \w+=\d+)+)`).FindStringSubmatch(plan) // the first line is the sum
	if found == nil || !strings.Contains(plan, "ix_outbox_dispatch") {
		t.Fatalf("no pages, or another index:\n%s", plan)
	}
	for _, m := range regexp.MustCompile(`(?:hit|read)=(\d+)`).FindAllStringSubmatch(found[1], -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		pages += n
	}
	return pages
}
