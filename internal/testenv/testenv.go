// Package testenv gives a test its own piece of real servers: a schema, a
// database, a vhost, or servers of its own to stop and kill. Everything is
// cleaned up when the test ends, and tests may run in parallel.
//
// `./baton test` starts the servers and tells where they are. Without them a
// test skips, or fails where CI is set.
package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/servers"
)

// Env is a PostgreSQL and a RabbitMQ that tests share, or that one test has.
type Env struct {
	databaseURL   string
	amqpURL       string
	managementURL string
}

func need(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("$%s is not set: run the tests by ./baton test", name)
		}
		t.Skipf("needs servers: run the tests by ./baton test ($%s is not set)", name)
	}
	return value
}

// Shared is the pair that all tests of a run share.
func Shared(t testing.TB) *Env {
	t.Helper()
	return &Env{
		databaseURL:   need(t, servers.TestDatabaseVar),
		amqpURL:       need(t, servers.TestAMQPVar),
		managementURL: need(t, servers.TestManagementVar),
	}
}

// Schema returns a pool whose search_path is a fresh schema, as the superuser.
func Schema(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Pool(t, SchemaURL(t))
}

// SchemaURL returns an address whose search_path is a fresh schema, as the
// superuser.
func SchemaURL(t testing.TB) string {
	t.Helper()
	admin := need(t, servers.TestDatabaseVar)
	name := unique()
	execute(t, admin, `create schema `+name)
	t.Cleanup(func() { execute(t, admin, `drop schema `+name+` cascade`) })
	u := parse(t, admin)
	query := u.Query()
	query.Set("search_path", name)
	u.RawQuery = query.Encode()
	return u.String()
}

// Database returns the address of a fresh empty database, as the superuser. It
// takes about ten times as long as a schema.
func Database(t testing.TB) string {
	t.Helper()
	return Shared(t).Database(t)
}

// Database is like the function Database, on this pair.
func (e *Env) Database(t testing.TB) string {
	t.Helper()
	name := unique()
	execute(t, e.databaseURL, `create database `+name)
	t.Cleanup(func() { execute(t, e.databaseURL, `drop database if exists `+name+` with (force)`) })
	u := parse(t, e.databaseURL)
	u.Path = "/" + name
	return u.String()
}

// ServiceDatabase is a migrated database with a service's two roles.
type ServiceDatabase struct {
	Admin   string // address as the superuser
	Owner   string // address as the role that owns the tables
	Service string // address as the role that the service runs with
}

// Migrated makes a fresh database the way Baton's set-up does, with roles of
// its own, and applies the migrations.
func Migrated(t testing.TB, migrations fs.FS) ServiceDatabase {
	t.Helper()
	return Shared(t).Migrated(t, migrations)
}

// Migrated is like the function Migrated, on this pair.
func (e *Env) Migrated(t testing.TB, migrations fs.FS) ServiceDatabase {
	t.Helper()
	d := e.Provisioned(t)
	if _, err := provision.Migrate(t.Context(), d.Owner, migrations); err != nil {
		t.Fatal(err)
	}
	return d
}

// Provisioned is Migrated without migrations.
func (e *Env) Provisioned(t testing.TB) ServiceDatabase {
	t.Helper()
	name := unique()
	d := provision.Database{
		Name:  name,
		Owner: name + "_owner", OwnerPassword: "owner",
		Service: name + "_service", ServicePassword: "service",
	}
	t.Cleanup(func() {
		execute(t, e.databaseURL, `drop database if exists `+name+` with (force)`)
		execute(t, e.databaseURL, `drop role if exists `+d.Owner)
		execute(t, e.databaseURL, `drop role if exists `+d.Service)
	})
	if err := provision.Databases(t.Context(), e.databaseURL, d); err != nil {
		t.Fatal(err)
	}
	return ServiceDatabase{
		Admin:   as(t, e.databaseURL, nil, name),
		Owner:   as(t, e.databaseURL, url.UserPassword(d.Owner, d.OwnerPassword), name),
		Service: as(t, e.databaseURL, url.UserPassword(d.Service, d.ServicePassword), name),
	}
}

// Pool returns a pool for the address, closed when the test ends.
func Pool(t testing.TB, address string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Servers is a pair that one test has for itself, to stop, kill and restart.
// Its Env gives databases and vhosts on it.
type Servers struct {
	servers.Pair
	Env
}

// OwnServers starts a pair of the kind that the run uses. It takes about ten
// seconds and 200 MB, so share one among subtests.
func OwnServers(t testing.TB) *Servers {
	t.Helper()
	cfg := OwnConfig(t)
	pair, err := servers.NewPair(cfg)
	if err != nil {
		t.Fatal(err)
	}
	start(t, pair)
	return &Servers{Pair: *pair, Env: Env{
		databaseURL:   pair.Postgres.URL("postgres"),
		amqpURL:       pair.Broker.AdminURL("/"),
		managementURL: pair.Broker.ManagementURL(),
	}}
}

// OwnPostgres starts a PostgreSQL that the test has for itself, in about a
// second.
func OwnPostgres(t testing.TB) *servers.Postgres {
	t.Helper()
	pg, err := servers.NewPostgres(OwnConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	start(t, pg)
	return pg
}

// OwnBroker starts a RabbitMQ that the test has for itself, in about eight
// seconds.
func OwnBroker(t testing.TB) *servers.Broker {
	t.Helper()
	broker, err := servers.NewBroker(OwnConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	start(t, broker)
	return broker
}

// OwnPooler starts a PgBouncer that the test has for itself, in front of this
// PostgreSQL. Without PgBouncer on the machine the test skips, or fails where CI
// is set.
func (e *Env) OwnPooler(t testing.TB) *servers.Pooler {
	t.Helper()
	cfg := OwnConfig(t)
	if !servers.PoolerPackage.Present() {
		if os.Getenv("CI") != "" {
			t.Fatal("no PgBouncer on this machine: run the tests by ./baton test")
		}
		t.Skip("needs PgBouncer: run the tests by ./baton test, or install pgbouncer")
	}
	p, err := servers.NewPooler(cfg, e.databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	start(t, p)
	return p
}

// OwnConfig says how servers that the test has for itself are made: of the kind
// that the run uses, with a Home that is removed when the test ends.
func OwnConfig(t testing.TB) servers.Config {
	t.Helper()
	kind, err := servers.ParseKind(need(t, servers.TestServersVar))
	if err != nil {
		t.Fatalf("$%s: %v", servers.TestServersVar, err)
	}
	clone, err := servers.ClonePath(".")
	if err != nil {
		t.Fatal(err)
	}
	home, err := servers.TempHome(clone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := home.Close(); err != nil {
			t.Error(err)
		}
	})
	return servers.Config{Kind: kind, Home: home}
}

func start(t testing.TB, s interface {
	Start(context.Context) error
	Stop(context.Context) error
}) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := atEnd()
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// unique is a name for a schema, database, role or vhost; no quoting needed.
func unique() string { return "t_" + strings.ToLower(rand.Text()[:12]) }

// atEnd is a context for cleaning up, when the test's own is done.
func atEnd() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 30*time.Second)
}

// execute runs one statement. It also serves as cleanup, so a failure is
// reported and the test goes on.
func execute(t testing.TB, address, statement string) {
	t.Helper()
	ctx, cancel := atEnd()
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Errorf("%s: %v", statement, err)
	}
}

func parse(t testing.TB, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(errors.New("address is no URL")) // err would show the password
	}
	return u
}

// as is address for another user, nil for the same, and another path.
func as(t testing.TB, address string, user *url.Userinfo, path string) string {
	t.Helper()
	u := parse(t, address)
	if user != nil {
		u.User = user
	}
	u.Path, u.RawPath = "/"+path, "/"+url.PathEscape(path)
	return u.String()
}

// Eventually calls try until it returns nil, more and more slowly, and fails
// the test with its last error when patience is over. what says what is
// waited for.
func Eventually(t testing.TB, patience time.Duration, what string, try func() error) {
	t.Helper()
	const slowest = 250 * time.Millisecond
	deadline := time.Now().Add(patience)
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, slowest) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().Add(wait).After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
		select {
		case <-time.After(wait):
		case <-t.Context().Done():
			t.Fatalf("%s: the test ended first: %v", what, err)
		}
	}
}

// Want returns nil if got is want, and otherwise an error that says both. It
// makes a condition of Eventually one line.
func Want[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}
