package provision

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// lockPatience is how long one migration run waits for another.
const lockPatience = 2 * time.Minute

// Migrate brings the schema of the database at url, whose user owns it, to the
// newest version in fsys, and returns what it applied. Of several runs at once
// one migrates and the others wait for it, for up to two minutes.
func Migrate(ctx context.Context, url string, fsys fs.FS) (applied []string, err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err // pgx keeps the password out of it
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, fsys,
		goose.WithSessionLocker(locker{}), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	results, err := provider.Up(ctx)
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	if err != nil {
		return applied, fmt.Errorf("migrate database %s: %w", config.Database, err)
	}
	if err := protectVersion(ctx, db); err != nil {
		return applied, fmt.Errorf("protect the schema version of database %s: %w", config.Database, err)
	}
	return applied, nil
}

// protectVersion takes from everybody else the right to write the schema
// version, which they have by default privileges like on any table.
func protectVersion(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return locker{}.do(ctx, conn, func() error {
		const revoke = `
do $$
declare
    other text;
begin
    for other in
        select distinct grantee from information_schema.role_table_grants
        where table_schema = current_schema() and table_name = 'goose_db_version'
          and privilege_type <> 'SELECT' and grantee not in (current_user, 'PUBLIC')
    loop
        execute format('revoke all on goose_db_version from %I; grant select on goose_db_version to %I', other, other);
    end loop;
end $$`
		_, err := conn.ExecContext(ctx, revoke)
		return err
	})
}

// locker keeps migration runs of one schema apart. It polls: a session that
// blocks in pg_advisory_lock holds a snapshot, and a migration that creates an
// index concurrently would wait for that snapshot, forever. Goose's own locker
// polls every 5 s.
type locker struct{}

const lockKey = `hashtextextended('baton migrations ' || current_schema(), 0)`

func (locker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lockPatience, errors.New("another run holds the lock"))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var locked bool
		const try = `select pg_try_advisory_lock(` + lockKey + `)`
		if err := conn.QueryRowContext(ctx, try).Scan(&locked); err != nil {
			return fmt.Errorf("lock migrations: %w", err)
		}
		if locked {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock migrations: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func (locker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	const unlock = `select pg_advisory_unlock(` + lockKey + `)`
	_, err := conn.ExecContext(ctx, unlock)
	return err
}

func (l locker) do(ctx context.Context, conn *sql.Conn, f func() error) error {
	if err := l.SessionLock(ctx, conn); err != nil {
		return err
	}
	return errors.Join(f(), l.SessionUnlock(context.WithoutCancel(ctx), conn))
}

// SchemaVersion is the newest version among the migrations in fsys, 0 if there
// is none.
func SchemaVersion(fsys fs.FS) (int64, error) {
	files, err := fs.Glob(fsys, "*.sql")
	if err != nil {
		return 0, err
	}
	var newest int64
	for _, f := range files {
		v, err := goose.NumericComponent(f)
		if err != nil {
			return 0, fmt.Errorf("migration %s: %w", f, err)
		}
		newest = max(newest, v)
	}
	return newest, nil
}

// RowQuerier is the part of a pool or connection that CheckVersion needs.
type RowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ErrSchema says that the database's schema is too old for this program. The
// error around it says what to do.
var ErrSchema = errors.New("database schema is too old")

// CheckVersion compares the schema of the database with the migrations in fsys
// that the program was built with. A schema that is too old is an ErrSchema;
// any other error means that the database could not be asked. A newer schema
// is fine: migrations only add, and are applied before the programs change.
func CheckVersion(ctx context.Context, db RowQuerier, fsys fs.FS) error {
	want, err := SchemaVersion(fsys)
	if err != nil {
		return err
	}
	var got int64
	const version = `select coalesce(max(version_id), 0) from goose_db_version where is_applied`
	err = db.QueryRow(ctx, version).Scan(&got)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42P01" { // no such table: never migrated
		err = nil
	}
	switch {
	case err != nil:
		return fmt.Errorf("read schema version: %w", err)
	case got < want:
		return fmt.Errorf("%w: it is at version %d and this program needs %d; run: ./baton migrate", ErrSchema, got, want)
	}
	return nil
}
