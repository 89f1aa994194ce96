package testenv

import (
	"context"
	"flag"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/servers"
)

// ExamplePool makes a schema with the given tables for an example, which has no
// testing.TB to report to, and returns a pool on it and how to drop it. It panics
// on any error.
func ExamplePool(ddl string) (db *pgxpool.Pool, drop func()) {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	config, err := pgxpool.ParseConfig(os.Getenv(servers.TestDatabaseVar))
	must(err)
	name := unique()
	config.ConnConfig.RuntimeParams["search_path"] = name
	db, err = pgxpool.NewWithConfig(ctx, config)
	must(err)
	_, err = db.Exec(ctx, "create schema "+name+";"+ddl)
	must(err)
	return db, func() {
		_, err := db.Exec(ctx, "drop schema "+name+" cascade")
		must(err)
		db.Close()
	}
}

// SkipExamplesWithoutServers lets the examples of a package be where its tests
// skip for want of servers: an example cannot skip itself. Call it in TestMain.
func SkipExamplesWithoutServers() {
	if os.Getenv(servers.TestDatabaseVar) != "" || os.Getenv("CI") != "" {
		return
	}
	if err := flag.Set("test.skip", "^Example"); err != nil {
		panic(err)
	}
}
