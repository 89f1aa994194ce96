package check

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// snapshot is one database as of one moment.
type snapshot struct {
	tx  pgx.Tx
	now time.Time // the database's clock at that moment
	err error     // of any of its streams
}

// readSnapshot gives one moment of a database to do.
func readSnapshot(ctx context.Context, db Querier, name string, do func(*snapshot) error) (err error) {
	begin := db.Begin // in a transaction: a savepoint
	if connection, ok := db.(interface {
		BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
	}); ok {
		begin = func(ctx context.Context) (pgx.Tx, error) {
			return connection.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		}
	}
	tx, err := begin(ctx)
	if err != nil {
		return fmt.Errorf("read the database of %s: %w", name, err)
	}
	// There is nothing to commit; this closes the cursors.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	s := &snapshot{tx: tx}
	// The moment is that of the first statement.
	if err := tx.QueryRow(ctx, `select now()`).Scan(&s.now); err != nil {
		return fmt.Errorf("read the database of %s: %w", name, err)
	}
	if err := do(s); err != nil {
		return err
	}
	if s.err != nil {
		return fmt.Errorf("read the database of %s: %w", name, s.err)
	}
	return nil
}

// collect reads all rows of a query whose result is small.
func collect[T any](ctx context.Context, s *snapshot, sql string, args ...any) []T {
	if s.err != nil {
		return nil
	}
	rows, err := s.tx.Query(ctx, sql, args...)
	var all []T
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	}
	if err != nil {
		s.err = err
	}
	return all
}

// pageSize is how many rows of a stream are in memory.
const pageSize = 1000

// stream reads the rows of a query that is sorted by key, a page at a time, so
// that several of one transaction can be read side by side. Its errors end up
// in the snapshot and end the stream.
type stream[T interface{ key() string }] struct {
	ctx   context.Context
	from  *snapshot
	fetch string
	page  []T
	last  bool // no page comes after this one
}

// open starts a stream. The query must order by its key collate "C", which is
// how Go compares strings, whatever the collation of the database.
func open[T interface{ key() string }](ctx context.Context, s *snapshot, cursor, sql string) *stream[T] {
	if s.err == nil {
		_, s.err = s.tx.Exec(ctx, "declare "+cursor+" no scroll cursor for "+sql)
	}
	return &stream[T]{ctx: ctx, from: s, fetch: fmt.Sprintf("fetch %d from %s", pageSize, cursor)}
}

// head returns the key of the next row; false at the end.
func (s *stream[T]) head() (string, bool) {
	if len(s.page) == 0 && !s.last {
		// Not prepared: a cursor of this name may have had other columns.
		s.page = collect[T](s.ctx, s.from, s.fetch, pgx.QueryExecModeExec)
		s.last = len(s.page) < pageSize
	}
	if s.from.err != nil || len(s.page) == 0 {
		return "", false
	}
	return s.page[0].key(), true
}

// take returns the rows with this key, which must not come after the head's.
func (s *stream[T]) take(key string) (rows []T) {
	for {
		if next, ok := s.head(); !ok || next != key {
			return rows
		}
		rows = append(rows, s.page[0])
		s.page = s.page[1:]
	}
}

// merge calls do for each key that any of the streams has, in order.
func merge(do func(key string), streams ...interface{ head() (string, bool) }) {
	for {
		var lowest string
		found := false
		for _, s := range streams {
			if key, ok := s.head(); ok && (!found || key < lowest) {
				lowest, found = key, true
			}
		}
		if !found {
			return
		}
		do(lowest)
	}
}
