// Command peers measures other libraries at what Baton does: as a relay from a
// PostgreSQL outbox to RabbitMQ, and as a consumer with an inbox. See README.md.
//
// It is a module of its own, so that who uses Baton downloads none of them.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/signal"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/samples"
	"example.com/baton/shared/outbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	if err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1) // the only exit in the program
	}
}

// setup is one library, set up in one way.
type setup struct {
	modules     []string // those that do the work; the result names their versions
	guarantee   string   // what it does and does not guarantee
	settings    string
	connections int32 // to the database; pgxpool's default if 0
	open        func(context.Context, *bed) (worker, error)
}

// peers by their names on the command line.
var peers = map[string]setup{
	"watermill-documented":     watermillDocumented,
	"watermill-tuned":          watermillTuned,
	"river":                    riverDocumented,
	"river-tuned":              riverTuned,
	"watermill-router-default": routerDefault,
	"watermill-router":         routerTuned,
}

// bed is what a library is given to work on.
type bed struct {
	db      *pgxpool.Pool
	address settings
	queue   *queue
	meter   *meter
	log     *slog.Logger   // the library's
	level   *slog.LevelVar // from which on it is heard
}

// silent is above every level.
const silent = slog.LevelError + 1

// worker is a library at work.
type worker interface {
	// fill stores what is to be handled. Its time does not count.
	fill(context.Context, []outbox.Message) error
	// run handles messages, and tells the meter of each, until ctx is done and what
	// is in hand is finished.
	run(context.Context) error
	// verify is told how many were handled in all, and compares that with what the
	// servers hold.
	verify(ctx context.Context, handled int) error
}

// result is what the program prints.
type result struct {
	Peer      string  `json:"peer"`
	Version   string  `json:"version"`
	Queue     string  `json:"queue"`
	Messages  int     `json:"messages"`
	Seconds   float64 `json:"seconds"` // from the first message handled on
	PerSecond int     `json:"per_second"`
	Guarantee string  `json:"guarantee"`
	Setup     string  `json:"setup"`
}

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	s, err := readSettings(args, getenv, stderr)
	if err != nil {
		return err
	}
	res, err := measure(ctx, s, stderr)
	if err != nil {
		return fmt.Errorf("%s: %w", s.peer, err)
	}
	return json.NewEncoder(stdout).Encode(res)
}

type settings struct {
	peer            string
	database, amqp  string
	queueType       string
	messages        int
	atLeast, atMost time.Duration
}

func readSettings(args []string, getenv func(string) string, stderr io.Writer) (settings, error) {
	var s settings
	names := strings.Join(slices.Sorted(maps.Keys(peers)), ", ")
	fs := flag.NewFlagSet("peers", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintf(stderr, "usage: peers PEER [flags]\nPEER is one of %s\n", names)
		fs.PrintDefaults()
	}
	fs.StringVar(&s.database, "database", "", "`URL` of an empty database, as the superuser; $PEERS_DATABASE_URL goes before it, and does not show in ps")
	fs.StringVar(&s.amqp, "amqp", "", "`URL` of a vhost; $PEERS_AMQP_URL goes before it")
	fs.StringVar(&s.queueType, "queue", amqp.QueueTypeQuorum, "classic or quorum")
	fs.IntVar(&s.messages, "messages", 50_000, "how many wait when it starts")
	fs.DurationVar(&s.atLeast, "atleast", 10*time.Second, "warn if all are handled sooner")
	fs.DurationVar(&s.atMost, "atmost", 20*time.Second, "stop this long after the first was handled")
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		s.peer, args = args[0], args[1:]
	}
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	s.database = cmp.Or(getenv("PEERS_DATABASE_URL"), s.database)
	s.amqp = cmp.Or(getenv("PEERS_AMQP_URL"), s.amqp)
	rest := fs.Args()
	if s.peer == "" && len(rest) > 0 {
		s.peer, rest = rest[0], rest[1:] // after the flags will do as well
	}
	_, known := peers[s.peer]
	switch {
	case !known || len(rest) > 0:
		fs.Usage()
		return s, fmt.Errorf("want one of %s", names)
	case s.queueType != amqp.QueueTypeClassic && s.queueType != amqp.QueueTypeQuorum:
		return s, fmt.Errorf("--queue is %q, want classic or quorum", s.queueType)
	case s.messages < 2:
		return s, errors.New("--messages: want two or more") // time begins with the first
	case s.database == "":
		return s, errors.New("no --database")
	}
	if _, err := amqp.ParseURI(s.amqp); err != nil {
		return s, errors.New("--amqp is no AMQP URL") // err would show the password
	}
	return s, nil
}

func measure(ctx context.Context, s settings, stderr io.Writer) (res result, err error) {
	peer := peers[s.peer]
	db, err := openDatabase(ctx, s.database, peer.connections)
	if err != nil {
		return res, err
	}
	defer db.Close()
	q, err := openQueue(s.amqp, s.queueType)
	if err != nil {
		return res, fmt.Errorf("queue: %w", err)
	}
	defer func() { err = errors.Join(err, q.delete()) }()

	log := slog.New(slog.NewTextHandler(stderr, nil))
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	b := &bed{
		db: db, address: s, queue: q, meter: newMeter(s.messages), level: level,
		log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})).With("library", s.peer),
	}
	w, err := peer.open(ctx, b)
	if err != nil {
		return res, err
	}
	begin := time.Now()
	if err := w.fill(ctx, samples.Events(s.messages, "PEER")); err != nil {
		return res, fmt.Errorf("fill: %w", err)
	}
	// What a database that has had its backlog for a while knows of its tables.
	if _, err := db.Exec(ctx, `vacuum (analyze)`); err != nil {
		return res, fmt.Errorf("vacuum: %w", err)
	}
	log.Info("filled", "peer", s.peer, "messages", s.messages, "took", time.Since(begin).Round(time.Millisecond))

	n, took, err := b.meter.measure(ctx, s.atMost, w.run)
	if err != nil {
		return res, err
	}
	if err := w.verify(ctx, b.meter.count()); err != nil {
		return res, err
	}
	if n == s.messages && took < s.atLeast {
		log.Warn("all were handled too soon for a good measurement: give it more --messages", "took", took.Round(time.Millisecond), "atleast", s.atLeast)
	}
	return result{
		Peer: s.peer, Version: versions(peer.modules), Queue: s.queueType,
		Messages: n, Seconds: math.Round(took.Seconds()*100) / 100, PerSecond: int(math.Round(float64(n-1) / took.Seconds())),
		Guarantee: peer.guarantee, Setup: peer.settings,
	}, nil
}

// openDatabase refuses a database that holds anything: a library's tables from
// another run would be worked off as well.
func openDatabase(ctx context.Context, url string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err // pgx keeps the password out of it
	}
	if connections > 0 {
		config.MaxConns = connections
	}
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	var tables int
	const count = `select count(*) from pg_tables where schemaname not in ('pg_catalog', 'information_schema')`
	err = db.QueryRow(ctx, count).Scan(&tables)
	if err == nil && tables > 0 {
		err = fmt.Errorf("database %s has %d tables, want an empty one", config.ConnConfig.Database, tables)
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// versions names the modules that this program was built with.
func versions(modules []string) string {
	info, _ := debug.ReadBuildInfo() // without it there are no versions to tell
	names := make([]string, len(modules))
	for i, m := range modules {
		version := "of unknown version"
		if info != nil {
			if at := slices.IndexFunc(info.Deps, func(d *debug.Module) bool { return d.Path == m }); at >= 0 {
				version = info.Deps[at].Version
			}
		}
		name := path.Base(m)
		if name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
			name = path.Base(path.Dir(m)) // …/watermill-sql/v4
		}
		names[i] = name + " " + version
	}
	return strings.Join(names, ", ")
}
