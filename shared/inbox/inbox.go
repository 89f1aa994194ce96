package inbox

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Schema is the DDL of the tables that this package works on, for the current
// schema of the search path. Put it into a migration of your own.
//
//go:embed schema.sql
var Schema string

// Beginner starts transactions: a pool or a connection of pgx.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// DB runs single statements: a pool, a connection or a transaction of pgx.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Two consumers that record the same ids at once wait for each other here, in
// the order of the ids, and the later one finds them known.
const recordSQL = `
insert into inbox_messages (consumer_name, event_id)
select $1, id from unnest($2::text[]) as id order by id
on conflict (consumer_name, event_id) do nothing
returning event_id`

// Handle runs fn in a transaction that also records ids for consumer, so that
// fn's writes happen once however often a message arrives. fn sees only the ids
// that are new, in the order given; the others are duplicates and count as
// handled. Without new ids fn is not called.
//
// If fn fails nothing is recorded and every id may be tried again. Work that fn
// does outside tx is not protected: enqueue it with package outbox instead.
//
// Each consumer that handles a message for a purpose of its own needs a name of
// its own. A nil error means that the transaction committed; any other says that
// it did not, or that it is not known (see [Outage]), and then the message must
// be handled again.
func Handle(ctx context.Context, db Beginner, consumer string, ids []string, fn func(tx pgx.Tx, fresh []string) error) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, recordSQL, consumer, ids)
		if err != nil {
			return fmt.Errorf("record in inbox: %w", err)
		}
		recorded, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("record in inbox: %w", err)
		}
		fresh := inOrder(ids, recorded)
		if len(fresh) == 0 {
			return nil
		}
		err = fn(tx, fresh)
		if err != nil && tx.Conn().IsClosed() {
			return &outage{err} // whatever it says: the connection is gone
		}
		return err
	})
}

const forgetSQL = `delete from inbox_messages where consumer_name = $1 and event_id = any ($2)`

// Forget takes back, in the transaction of [Handle], that ids are recorded. It
// is for a message that fn finds it must not handle although the rest of the
// batch goes on: recorded all the same, it would be a duplicate when it comes
// again.
func Forget(ctx context.Context, tx pgx.Tx, consumer string, ids ...string) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, forgetSQL, consumer, ids); err != nil {
		return fmt.Errorf("forget in inbox: %w", err)
	}
	return nil
}

// inOrder returns those of ids that are in recorded, each once, in the order of
// ids.
func inOrder(ids, recorded []string) []string {
	isNew := make(map[string]bool, len(recorded))
	for _, id := range recorded {
		isNew[id] = true
	}
	fresh := make([]string, 0, len(recorded))
	for _, id := range ids {
		if isNew[id] {
			isNew[id] = false
			fresh = append(fresh, id)
		}
	}
	return fresh
}

// conflictTries is how often a transaction that lost a deadlock or a
// serialization conflict is run again at once.
const conflictTries = 5

// HandleBatch is [Handle] for a batch, with one verdict per id: nil, an outage
// for which [Outage] is true, or the message's own fault.
//
// All ids are handled in one transaction. If that fails by the fault of a
// message, each is handled alone, so that a bad one harms only itself; so too if
// it had to wait too long for a lock, because the others may not need that row.
// If it fails by any other outage, all get that error and none is at fault. It
// is an outage as well when every message alone meets the same unusual database
// error: then it is not they who are broken.
//
// fn may be called several times, for all ids or for one, so it must start
// afresh whatever it gathers outside tx. A panic of fn is taken as its error.
func HandleBatch(ctx context.Context, db Beginner, consumer string, ids []string, fn func(tx pgx.Tx, fresh []string) error) []error {
	errs := make([]error, len(ids))
	if len(ids) == 0 {
		return errs
	}
	err := handleAgain(ctx, db, consumer, ids, fn)
	switch {
	case err == nil:
		return errs
	case len(ids) == 1, Outage(err) && !busy(err):
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	first, inARow := 0, 0
	if busy(err) {
		// From a place that differs each time, so that those which are put off do not
		// wait behind the same ones again.
		first = rand.IntN(len(ids))
	}
	var putOff error
	for n := range ids {
		i := (first + n) % len(ids)
		if putOff != nil {
			errs[i] = putOff
			continue
		}
		errs[i] = handleAgain(ctx, db, consumer, ids[i:i+1], fn)
		switch {
		case !Outage(errs[i]):
			inARow = 0
		case !busy(errs[i]):
			putOff = errs[i] // an outage after all
		default:
			if inARow++; inARow == busyTries {
				putOff = errs[i]
			}
		}
	}
	if code := sameUnusualCode(errs); code != "" {
		for i, err := range errs {
			errs[i] = &outage{fmt.Errorf("every message of the batch fails alone with SQLSTATE %s: %w", code, err)}
		}
	}
	return errs
}

// handleAgain is Handle, run again when the database asks for it.
func handleAgain(ctx context.Context, db Beginner, consumer string, ids []string, fn func(tx pgx.Tx, fresh []string) error) (err error) {
	for range conflictTries {
		err = handleSafely(ctx, db, consumer, ids, fn)
		if code := sqlState(err); code != deadlock && code != serialization {
			return err
		}
	}
	return &outage{err} // whoever it conflicts with is at it for long: no fault of the message
}

// handleSafely is Handle with a panic of fn as an error.
func handleSafely(ctx context.Context, db Beginner, consumer string, ids []string, fn func(tx pgx.Tx, fresh []string) error) error {
	return Handle(ctx, db, consumer, ids, func(tx pgx.Tx, fresh []string) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack())
			}
		}()
		return fn(tx, fresh)
	})
}

// sameUnusualCode returns the SQLSTATE that all of at least two errors share,
// unless it is one of bad data or a broken rule: those are a message's own.
func sameUnusualCode(errs []error) string {
	if len(errs) < 2 {
		return ""
	}
	first := sqlState(errs[0])
	if first == "" || first[:2] == "22" || first[:2] == "23" {
		return ""
	}
	same := func(err error) bool { return sqlState(err) == first }
	if !slices.ContainsFunc(errs, func(err error) bool { return !same(err) }) {
		return first
	}
	return ""
}

// By the rows' places, which cannot change while they are locked: for a limit that
// it does not know the planner takes a tenth of the table, and would look for the
// keys of so many by reading all of it.
const pruneSQL = `
delete from inbox_messages where ctid = any (array (
  select ctid from inbox_messages
  where received_at < now() - $1::interval
  order by received_at limit $2 for update skip locked))`

const pruneAtOnce = 1000

// Prune forgets messages that were received longer than keep ago, in chunks, and
// returns how many.
//
// A message that arrives after it was forgotten is handled again. So keep must
// cover the longest time in which a copy may still come: the maximum age of a
// message at either end, the time in which people replay dead letters, and the
// age of the oldest backup of the broker or the sender that may be restored.
func Prune(ctx context.Context, db DB, keep time.Duration) (int64, error) {
	var total int64
	for {
		tag, err := db.Exec(ctx, pruneSQL, keep, pruneAtOnce)
		if err != nil {
			return total, fmt.Errorf("prune inbox: %w", err)
		}
		total += tag.RowsAffected()
		if tag.RowsAffected() < pruneAtOnce {
			return total, nil
		}
	}
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
