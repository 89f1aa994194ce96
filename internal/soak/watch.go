package soak

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/stack"
)

// what is a kind of figure.
type what struct {
	name string
	unit string // "bytes", "seconds" or "" for a number of things
	// floor is how much more in the last quarter is no growth, however little
	// there was: what one garbage collection, one round of vacuum or one busy
	// moment of the machine makes.
	floor float64
}

const mib = 1 << 20

var (
	residentMemory  = what{"resident memory", bytesUnit, 8 * mib}
	goHeap          = what{"Go heap", bytesUnit, 8 * mib}
	goroutines      = what{"goroutines", "", 10}
	openFiles       = what{"open files", "", 10}
	poolConnections = what{"connections of the pool", "", 2}
	serverSessions  = what{"connections to the database", "", 2}
	brokerSessions  = what{"connections to the broker", "", 2}
	brokerChannels  = what{"channels of the broker", "", 2}
	queued          = what{"messages in queues", "", 500}
	openRows        = what{"rows not published", "", 500}
	tableSize       = what{"table", bytesUnit, 2 * mib}
	indexSize       = what{"indexes", bytesUnit, 2 * mib}
	claimTime       = what{"time of a claim", secondsUnit, 0.005}
	latency50       = what{"POST, half within", secondsUnit, 0.005}
	latency95       = what{"POST, 95 % within", secondsUnit, 0.025}
	latency99       = what{"POST, 99 % within", secondsUnit, 0.05}
)

const (
	bytesUnit   = "bytes"
	secondsUnit = "seconds"
)

// whats in the order of the report.
var whats = []what{
	residentMemory, goHeap, goroutines, openFiles, poolConnections, serverSessions, brokerSessions, brokerChannels,
	queued, openRows, claimTime, latency50, latency95, latency99, tableSize, indexSize,
}

// Whats are the kinds of figures, by name.
func Whats() (names []string) {
	for _, w := range whats {
		names = append(names, w.name)
	}
	return names
}

// key names a figure: of which process, table or queue it is.
type key struct {
	what  what
	where string
}

// kept are the tables that are never pruned: they grow with what they hold.
var kept = []string{"orders.orders", "orders.order_answers", "inventory.inventory_orders", "inventory.inventory_reservations"}

func (k key) judged() bool {
	return k.what != tableSize && k.what != indexSize || !slices.Contains(kept, k.where)
}

// sample is all figures at a moment of the load.
type sample struct {
	at     time.Duration // since its beginning
	values map[key]float64
}

// watch takes samples.
type watch struct {
	processes []*stack.Process
	databases map[string]*pgxpool.Pool // by name, as the superuser
	broker    *provision.Management
	load      *load

	samples []sample
	missed  int
	claims  map[string][2]float64 // by process: their number and time at the last sample
}

func (w *watch) take(ctx context.Context, at time.Duration) error {
	s := sample{at, make(map[key]float64)}
	for _, look := range []func(context.Context, map[key]float64) error{w.lookAtProcesses, w.lookAtDatabases, w.lookAtBroker} {
		if err := look(ctx, s.values); err != nil {
			w.missed++
			return err
		}
	}
	if took := w.load.times(); len(took) > 0 {
		for q, k := range map[float64]what{0.5: latency50, 0.95: latency95, 0.99: latency99} {
			s.values[key{k, "clients"}] = took[int(q*float64(len(took)-1))].Seconds()
		}
	}
	w.samples = append(w.samples, s)
	return nil
}

func (w *watch) lookAtProcesses(ctx context.Context, values map[key]float64) error {
	if w.claims == nil {
		w.claims = make(map[string][2]float64)
	}
	for _, p := range w.processes {
		found, err := p.Metrics(ctx)
		if err != nil {
			return err
		}
		for name, k := range map[string]what{
			"process_resident_memory_bytes": residentMemory,
			"go_memstats_heap_inuse_bytes":  goHeap,
			"go_goroutines":                 goroutines,
			"process_open_fds":              openFiles,
			"baton_database_connections":    poolConnections,
		} {
			v, ok := found[name]
			if !ok {
				return fmt.Errorf("%s shows no %s", p.Name, name)
			}
			values[key{k, p.Name}] = v
		}
		now, before := [2]float64{found["baton_relay_claims_total"], found["baton_relay_claim_seconds_total"]}, w.claims[p.Name]
		if n := now[0] - before[0]; n > 0 {
			values[key{claimTime, p.Name}] = (now[1] - before[1]) / n
		}
		w.claims[p.Name] = now
		values[key{openRows, p.Name}] = found[`baton_outbox_rows{status="Pending"}`] + found[`baton_outbox_rows{status="Processing"}`]
	}
	return nil
}

const sizesSQL = `
select relname, pg_table_size(oid), pg_indexes_size(oid) from pg_class
where relkind = 'r' and relnamespace = 'public'::regnamespace and relname <> 'goose_db_version'`

const sessionsSQL = `
select count(*) from pg_stat_activity where datname = current_database() and usename like '%\_service'`

func (w *watch) lookAtDatabases(ctx context.Context, values map[key]float64) error {
	for name, db := range w.databases {
		var sessions int
		if err := db.QueryRow(ctx, sessionsSQL).Scan(&sessions); err != nil {
			return fmt.Errorf("sessions of %s: %w", name, err)
		}
		values[key{serverSessions, name}] = float64(sessions)
		rows, err := db.Query(ctx, sizesSQL)
		if err != nil {
			return fmt.Errorf("sizes in %s: %w", name, err)
		}
		var table string
		var size, indexes int64
		_, err = pgx.ForEachRow(rows, []any{&table, &size, &indexes}, func() error {
			values[key{tableSize, name + "." + table}] = float64(size)
			values[key{indexSize, name + "." + table}] = float64(indexes)
			return nil
		})
		if err != nil {
			return fmt.Errorf("sizes in %s: %w", name, err)
		}
	}
	return nil
}

func (w *watch) lookAtBroker(ctx context.Context, values map[key]float64) error {
	var overview struct {
		Totals struct{ Connections, Channels float64 } `json:"object_totals"`
	}
	if err := w.broker.Do(ctx, http.MethodGet, provision.Path("overview"), nil, &overview); err != nil {
		return err
	}
	values[key{brokerSessions, "broker"}] = overview.Totals.Connections
	values[key{brokerChannels, "broker"}] = overview.Totals.Channels
	var queues []struct {
		Name     string
		Messages float64
	}
	if err := w.broker.Do(ctx, http.MethodGet, provision.Path("queues"), nil, &queues); err != nil {
		return err
	}
	for _, q := range queues {
		values[key{queued, q.Name}] = q.Messages
	}
	return nil
}

// last is a line about the last sample, for people who wait.
func (w *watch) last() string {
	if len(w.samples) == 0 {
		return "no sample yet"
	}
	var parts []string
	values := w.samples[len(w.samples)-1].values
	for _, k := range slices.SortedFunc(maps.Keys(values), func(a, b key) int { return strings.Compare(a.where, b.where) }) {
		switch k.what {
		case residentMemory, claimTime, latency95:
			parts = append(parts, fmt.Sprintf("%s %s %s", k.where, k.what.name, show(values[k], k.what.unit)))
		case tableSize:
			if strings.HasSuffix(k.where, ".outbox_messages") {
				parts = append(parts, fmt.Sprintf("%s %s", k.where, show(values[k], k.what.unit)))
			}
		}
	}
	return strings.Join(parts, ", ")
}
