package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/inbox"
)

func TestMain(m *testing.M) {
	testenv.SkipExamplesWithoutServers()
	goleak.VerifyTestMain(m)
}

func table(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := testenv.Schema(t)
	exec(t, db, inbox.Schema)
	exec(t, db, `create table effects (event_id text not null, note text)`)
	return db
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t *testing.T, db *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// apply writes one effect for each new id.
func apply(ctx context.Context) func(pgx.Tx, []string) error {
	return func(tx pgx.Tx, fresh []string) error {
		_, err := tx.Exec(ctx, `insert into effects select unnest($1::text[])`, fresh)
		return err
	}
}

// A29, B42: whoever brings an event how often and at the same time, it takes
// effect once.
func TestDuplicatesTakeEffectOnce(t *testing.T) {
	t.Parallel()
	db := table(t)
	ids := make([]string, 200)
	for i := range ids {
		ids[i] = fmt.Sprintf("e%03d", i)
	}
	var wg sync.WaitGroup
	for replica := range 4 {
		wg.Go(func() {
			mine := slices.Clone(ids)
			if replica%2 == 1 {
				slices.Reverse(mine) // the order of the ids must not make them deadlock
			}
			for batch := range slices.Chunk(append(mine, mine...), 20) {
				for _, err := range inbox.HandleBatch(t.Context(), db, "stock", batch, apply(t.Context())) {
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := count(t, db, `select count(*) from effects`); n != 200 {
		t.Errorf("%d effects of 200 events", n)
	}
}

// B44: another consumer handles the same events for itself.
func TestConsumersDoNotShareTheirInbox(t *testing.T) {
	t.Parallel()
	db := table(t)
	for _, consumer := range []string{"stock", "points"} {
		if err := inbox.Handle(t.Context(), db, consumer, []string{"a", "b", "a"}, apply(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, db, `select count(*) from inbox_messages`); n != 4 {
		t.Errorf("%d rows in the inbox, want 4", n)
	}
	if n := count(t, db, `select count(*) from effects`); n != 4 {
		t.Errorf("%d effects, want 4", n)
	}
}

func TestFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	db := table(t)
	broken := errors.New("broken")
	err := inbox.Handle(t.Context(), db, "stock", []string{"a"}, func(tx pgx.Tx, fresh []string) error {
		if err := apply(t.Context())(tx, fresh); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if n := count(t, db, `select (select count(*) from effects) + (select count(*) from inbox_messages)`); n != 0 {
		t.Errorf("%d rows of a transaction that failed", n)
	}
}

// A commit that fails is a failure: here a constraint that is checked only then.
func TestCommitIsChecked(t *testing.T) {
	t.Parallel()
	db := table(t)
	exec(t, db, `create table rule (id text primary key deferrable initially deferred)`)
	exec(t, db, `insert into rule values ('a')`)
	err := inbox.Handle(t.Context(), db, "stock", []string{"a"}, func(tx pgx.Tx, fresh []string) error {
		_, err := tx.Exec(t.Context(), `insert into rule values ('a')`)
		return err
	})
	if err == nil || inbox.Outage(err) {
		t.Errorf("got %v, want a violation that is the message's own", err)
	}
	if n := count(t, db, `select count(*) from inbox_messages`); n != 0 {
		t.Errorf("recorded although nothing was committed")
	}
}

// A bad message harms only itself, also when it panics.
func TestBadMessageInABatch(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(tx pgx.Tx) error{
		"error": func(pgx.Tx) error { return errors.New("bad") },
		"panic": func(pgx.Tx) error { panic("bad") },
		"constraint": func(tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), `insert into effects values (null)`)
			return err
		},
		"swallowed": func(tx pgx.Tx) error { _, _ = tx.Exec(context.Background(), `select 1/0`); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := table(t)
			ids := []string{"a", "b", "bad", "c", "d"}
			errs := inbox.HandleBatch(t.Context(), db, "stock", ids, func(tx pgx.Tx, fresh []string) error {
				if slices.Contains(fresh, "bad") {
					if err := spoil(tx); err != nil {
						return err
					}
				}
				return apply(t.Context())(tx, fresh)
			})
			for i, err := range errs {
				if (ids[i] == "bad") != (err != nil) || inbox.Outage(err) {
					t.Errorf("%s: %v", ids[i], err)
				}
			}
			if n := count(t, db, `select count(*) from effects`); n != 4 {
				t.Errorf("%d effects, want 4", n)
			}
		})
	}
}

// What is wrong with the surroundings is nobody's fault. (B90, B91)
func TestOutagesAreNobodysFault(t *testing.T) {
	t.Parallel()
	raise := func(code string) func(pgx.Tx, []string) error {
		return func(tx pgx.Tx, _ []string) error {
			_, err := tx.Exec(context.Background(), fmt.Sprintf(`do $$ begin raise exception using errcode = '%s'; end $$`, code))
			return err
		}
	}
	for code, outage := range map[string]bool{
		"08006": true, "28000": true, "53100": true, "53200": true, "53300": true, "57P01": true, "57P03": true, "58030": true,
		"26000": true, "42P05": true,
		"25006": true, "42501": true, "42P01": true, "42703": true, "55P03": true, "57014": true, "25P03": true,
		"22001": false, "22P05": false, "23505": false, "23514": false, "P0001": false, "XX000": false, "0A000": false,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			db := table(t)
			if err := inbox.Handle(t.Context(), db, "stock", []string{"a"}, raise(code)); inbox.Outage(err) != outage {
				t.Errorf("alone: outage %t, want %t: %v", !outage, outage, err)
			}
			whole := outage || code == "P0001" || code == "XX000" || code == "0A000" // all fail alone by one unusual cause
			for _, err := range inbox.HandleBatch(t.Context(), db, "stock", []string{"a", "b", "c", "d", "e"}, raise(code)) {
				if inbox.Outage(err) != whole {
					t.Errorf("in a batch: outage %t, want %t: %v", !whole, whole, err)
				}
			}
		})
	}
	for name, err := range map[string]error{
		"no connection": &net.OpError{Op: "dial", Err: errors.New("refused")},
		"timeout":       fmt.Errorf("reserve: %w", context.DeadlineExceeded),
		"conn closed":   &pgconn.ConnectError{},
	} {
		if !inbox.Outage(err) {
			t.Errorf("%s: not an outage", name)
		}
	}
	if inbox.Outage(nil) || inbox.Outage(errors.New("out of stock")) {
		t.Error("an outage where there is none")
	}
}

// A prepared statement whose table has changed fails by a code that may be a
// message's own fault too.
func TestChangedPlanIsAnOutage(t *testing.T) {
	t.Parallel()
	db := table(t)
	if _, err := db.Exec(t.Context(), `create table changing (a int)`); err != nil {
		t.Fatal(err)
	}
	read := func(tx pgx.Tx) error {
		rows, err := tx.Query(t.Context(), `select * from changing`)
		if err == nil {
			_, err = pgx.CollectRows(rows, pgx.RowToMap)
		}
		return err
	}
	err := inbox.Handle(t.Context(), db, "stock", []string{"a"}, func(tx pgx.Tx, _ []string) error {
		if err := read(tx); err != nil {
			t.Error(err)
		}
		if _, err := tx.Exec(t.Context(), `alter table changing add b int`); err != nil {
			t.Error(err)
		}
		return read(tx)
	})
	if !inbox.Outage(err) {
		t.Errorf("not an outage: %v", err)
	}
}

func TestConnectionLostInTheMiddleIsAnOutage(t *testing.T) {
	t.Parallel()
	db := table(t)
	err := inbox.Handle(t.Context(), db, "stock", []string{"a"}, func(tx pgx.Tx, _ []string) error {
		_, err := tx.Exec(t.Context(), `select pg_terminate_backend(pg_backend_pid())`)
		return err
	})
	if !inbox.Outage(err) {
		t.Errorf("not an outage: %v", err)
	}
}

// A deadlock is resolved by running the loser again.
func TestDeadlockIsRunAgain(t *testing.T) {
	t.Parallel()
	db := table(t)
	exec(t, db, `create table stock (sku text primary key, n int not null default 0)`)
	exec(t, db, `insert into stock values ('x'), ('y')`)
	var both sync.WaitGroup
	both.Add(2)
	var wg sync.WaitGroup
	for i, order := range [][2]string{{"x", "y"}, {"y", "x"}} {
		wg.Go(func() {
			first := true
			errs := inbox.HandleBatch(t.Context(), db, "stock", []string{fmt.Sprint(i)}, func(tx pgx.Tx, _ []string) error {
				for j, sku := range order {
					if j == 1 && first { // each holds one
						first = false
						both.Done()
						both.Wait()
					}
					if _, err := tx.Exec(t.Context(), `update stock set n = n + 1 where sku = $1`, sku); err != nil {
						return err
					}
				}
				return nil
			})
			if errs[0] != nil {
				t.Error(errs[0])
			}
		})
	}
	wg.Wait()
	if n := count(t, db, `select sum(n)::int from stock`); n != 4 {
		t.Errorf("%d updates, want 4", n)
	}
}

// B35: a message that waits for a locked row does not take the others with it.
func TestLockedRowHoldsOnlyWhoNeedsIt(t *testing.T) {
	t.Parallel()
	db := table(t)
	exec(t, db, `create table stock (sku text primary key)`)
	exec(t, db, `insert into stock values ('locked')`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `select * from stock for update`); err != nil {
		t.Fatal(err)
	}
	ids := []string{"a", "needs-it", "b", "c"}
	errs := inbox.HandleBatch(t.Context(), db, "stock", ids, func(tx pgx.Tx, fresh []string) error {
		if slices.Contains(fresh, "needs-it") {
			if _, err := tx.Exec(t.Context(), `set local lock_timeout = '50ms'`); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), `select * from stock for update`); err != nil {
				return err
			}
		}
		return apply(t.Context())(tx, fresh)
	})
	for i, err := range errs {
		if inbox.Outage(err) != (ids[i] == "needs-it") {
			t.Errorf("%s: %v", ids[i], err)
		}
	}
}

// A32, B46: a message that comes back after it was forgotten is handled again.
// That is why the retention has to cover all that can come back.
func TestPruneForgets(t *testing.T) {
	t.Parallel()
	db := table(t)
	handle := func() {
		if err := inbox.Handle(t.Context(), db, "stock", []string{"old", "new"}, apply(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	handle()
	exec(t, db, `update inbox_messages set received_at = now() - interval '31 days' where event_id = 'old'`)
	n, err := inbox.Prune(t.Context(), db, 30*24*time.Hour)
	if n != 1 || err != nil {
		t.Errorf("pruned %d, %v", n, err)
	}
	handle()
	if n := count(t, db, `select count(*) from effects where event_id = 'old'`); n != 2 {
		t.Errorf("%d effects of the forgotten, want 2", n)
	}
	if n := count(t, db, `select count(*) from effects where event_id = 'new'`); n != 1 {
		t.Errorf("%d effects of the remembered, want 1", n)
	}
}

func TestSuspects(t *testing.T) {
	t.Parallel()
	s := inbox.Suspects{DB: table(t), Consumer: "stock"}
	for want := 1; want <= 3; want++ {
		if n, err := s.Mark(t.Context(), "a"); n != want || err != nil {
			t.Fatalf("mark %d: %d, %v", want, n, err)
		}
	}
	if err := s.Clear(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Mark(t.Context(), "a"); n != 1 || err != nil {
		t.Errorf("after clear: %d, %v", n, err)
	}
	if !strings.Contains(inbox.Schema, "inbox_suspects") {
		t.Error("the schema lacks the table")
	}
}
