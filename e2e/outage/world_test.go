package outage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/servers"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	migrations "example.com/baton/migrations/inventory"
)

// perSecond is the load that every disturbance meets.
const perSecond = 40

// world is a system with several processes of each service, and how it was when
// all was well.
type world struct {
	*system.System
	t           *testing.T
	orders      []*system.Process
	inventories []*system.Process
	start       levels
}

// setup says how a world is to be. The zero value is right for most tests.
type setup struct {
	servers   *testenv.Env // defaults to those that all tests share
	processes int          // of each service; defaults to 2
	// lease of the relays. Defaults to 6 seconds: long enough for a busy machine,
	// and no longer than a test can wait for what a lost answer has left claimed.
	lease time.Duration
	// inventoryOn, when set, is the server of inventory's database, so that it can
	// go down alone.
	inventoryOn *servers.Postgres
}

// begin starts the processes, has them do some work, and takes their measure.
func begin(t *testing.T, is setup) *world {
	t.Helper()
	options := system.Options{
		Servers: is.servers, Audit: true, Lease: cmp.Or(is.lease, 6*time.Second),
		Env: []string{"BATON_AUDIT_EVERY=1s"},
	}
	var database *pgxpool.Pool
	if is.inventoryOn != nil {
		var url string
		url, database = inventoryDatabase(t, is.inventoryOn)
		options.Env = append(options.Env, "INVENTORY_DATABASE_URL="+url)
	}
	s := system.New(t, options)
	if database != nil {
		s.InventoryDB = database
	}
	order, inventory := s.Start()
	w := &world{System: s, t: t, orders: []*system.Process{order}, inventories: []*system.Process{inventory}}
	for range cmp.Or(is.processes, 2) - 1 {
		w.orders = append(w.orders, s.StartOrder())
		w.inventories = append(w.inventories, s.StartInventory())
	}
	w.allWell()
	s.Place(20)
	s.Settled()
	w.start = w.measure()
	return w
}

// inventoryDatabase makes the database of inventory on a server, and returns its
// address for the service and a pool for the superuser.
func inventoryDatabase(t *testing.T, pg *servers.Postgres) (service string, admin *pgxpool.Pool) {
	t.Helper()
	d := provision.Database{
		Name: "inventory", Owner: "inventory_owner", OwnerPassword: "owner",
		Service: "inventory_service", ServicePassword: "service",
	}
	if err := provision.Databases(t.Context(), pg.URL("postgres"), d); err != nil {
		t.Fatal(err)
	}
	if _, err := provision.Migrate(t.Context(), pg.URLFor(d.Owner, d.OwnerPassword, d.Name), migrations.FS); err != nil {
		t.Fatal(err)
	}
	return pg.URLFor(d.Service, d.ServicePassword, d.Name), testenv.Pool(t, pg.URL(d.Name))
}

func (w *world) all() []*system.Process {
	return append(append([]*system.Process{}, w.orders...), w.inventories...)
}

// under has orders come in while disturb disturbs and mends.
func (w *world) under(disturb func()) {
	w.t.Helper()
	load := w.Load(perSecond)
	disturb()
	if n := len(load.Stop()); n == 0 {
		w.t.Fatal("no order was accepted: there was no load")
	}
}

// recovered is what must be true after every disturbance.
func (w *world) recovered() {
	w.t.Helper()
	w.Settled()
	w.Exact()
	w.asAtTheStart()
	w.allWell()
}

// allWell waits until every process says that nothing is amiss.
func (w *world) allWell() {
	w.t.Helper()
	for _, p := range w.all() {
		// Inventory looks at its bindings twice a minute.
		testenv.Eventually(w.t, 45*time.Second, p.Name+" is well", func() error {
			r, err := ready(p)
			if err != nil {
				return err
			}
			return r.is(http.StatusOK, "ok")
		})
	}
}

// readiness is an answer of /readyz.
type readiness struct {
	code   int
	Status string
	Checks []struct{ Name, Status, Detail string }
}

func ready(p *system.Process) (r readiness, err error) {
	code, body, err := p.Get("/readyz")
	if err != nil {
		return r, err
	}
	r.code = code
	return r, json.Unmarshal(body, &r)
}

// is returns an error unless the answer is this one. Words are looked for in the
// details of the checks.
func (r readiness) is(code int, status string, words ...string) error {
	if r.code != code || r.Status != status {
		return fmt.Errorf("%s, want %d %s", r, code, status)
	}
	return r.says(words...)
}

// says returns an error unless each of the words is in some detail.
func (r readiness) says(words ...string) error {
	text := r.String()
	for _, word := range words {
		if !strings.Contains(text, word) {
			return fmt.Errorf("%s, want %q in it", text, word)
		}
	}
	return nil
}

func (r readiness) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", r.code, r.Status)
	for _, c := range r.Checks {
		if c.Status != "ok" {
			fmt.Fprintf(&b, "; %s %s: %s", c.Name, c.Status, c.Detail)
		}
	}
	return b.String()
}

// eventuallyReady waits until /readyz of a process gives this answer.
func eventuallyReady(t *testing.T, patience time.Duration, p *system.Process, code int, status string, words ...string) {
	t.Helper()
	testenv.Eventually(t, patience, fmt.Sprintf("/readyz of %s is %d %s %q", p.Name, code, status, words), func() error {
		r, err := ready(p)
		if err != nil {
			return err
		}
		return r.is(code, status, words...)
	})
}

// watch notes what /readyz of a process says until stop is called, which returns
// all of it.
func watch(t *testing.T, p *system.Process) (stop func() []readiness) {
	ctx, cancel := context.WithCancel(t.Context())
	var seen []readiness
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			r, err := ready(p)
			if err != nil {
				r = readiness{Status: err.Error()}
			}
			seen = append(seen, r)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() []readiness {
		cancel()
		watching.Wait()
		return seen
	}
}

// sum adds up a metric of several processes, each in its present life.
func (w *world) sum(name string, of ...*system.Process) int {
	w.t.Helper()
	total := 0
	for _, p := range of {
		total += int(p.Metric(name))
	}
	return total
}

// wantOnlyAnswers fails the test if clients were ever answered with a status that
// is not among these.
func (w *world) wantOnlyAnswers(statuses ...int) {
	w.t.Helper()
	for status, n := range w.Statuses() {
		if !slices.Contains(statuses, status) {
			w.t.Errorf("clients were answered %d times with %d, want nothing but %v", n, status, statuses)
		}
	}
}

// levels are what grows when something is not let go of.
type levels struct {
	connections int // of the services to the broker
	goroutines  map[string]int
	files       map[string]int // open ones, without the pool's connections to the database
}

// measure takes the levels of a system at rest. Of goroutines and files it is the
// most of some looks, because a look itself takes some, now more and now fewer.
func (w *world) measure() levels {
	w.t.Helper()
	w.CloseIdle()
	l := levels{
		connections: listed(w.t, w.System, len(w.all())),
		goroutines:  make(map[string]int), files: make(map[string]int),
	}
	for _, p := range w.all() {
		for range 10 {
			l.goroutines[p.Name] = max(l.goroutines[p.Name], w.sum("go_goroutines", p))
			l.files[p.Name] = max(l.files[p.Name], w.files(p))
		}
	}
	return l
}

func (w *world) files(p *system.Process) int {
	w.t.Helper()
	return w.sum("process_open_fds", p) - w.sum("baton_database_connections", p)
}

// listed waits until the broker lists the connections of so many processes, which
// it does some time after they were opened, and returns how many these are: of
// each process one that publishes, one that consumes, and one for the final
// forward.
func listed(t *testing.T, s *system.System, processes int) int {
	t.Helper()
	want := 3 * processes
	testenv.Eventually(t, 30*time.Second, "all connections are listed", func() error {
		n, err := connections(t, s)
		return errors.Join(err, testenv.Want(n, want))
	})
	return want
}

// asAtTheStart waits until nothing is left over from what the test has done.
func (w *world) asAtTheStart() {
	w.t.Helper()
	testenv.Eventually(w.t, 30*time.Second, "connections, goroutines and files as at the start", func() error {
		w.CloseIdle()
		n, err := connections(w.t, w.System)
		errs := []error{err, testenv.Want(n, w.start.connections)}
		for _, p := range w.all() {
			if n, most := w.sum("go_goroutines", p), w.start.goroutines[p.Name]; n > most {
				errs = append(errs, fmt.Errorf("%s has %d goroutines, %d at the start", p.Name, n, most))
			}
			if n, most := w.files(p), w.start.files[p.Name]; n > most {
				errs = append(errs, fmt.Errorf("%s has %d files open, %d at the start", p.Name, n, most))
			}
		}
		return errors.Join(errs...)
	})
}

// connections counts those of the services in the vhost; the tests' own are the
// administrator's.
func connections(t *testing.T, s *system.System) (int, error) {
	var list []struct{ User string }
	if err := s.Broker.Do(t.Context(), http.MethodGet, "/vhosts/{vhost}/connections", nil, &list); err != nil {
		return 0, err
	}
	admin := userOf(t, s.Vhost)
	n := 0
	for _, c := range list {
		if c.User != admin {
			n++
		}
	}
	return n, nil
}

// record is a line of a process's log.
type record struct {
	Level     string
	Msg       string
	MessageID string `json:"message_id"`
	Err       string
}

// records are the lines that a process has logged in its present life.
func records(p *system.Process) (all []record) {
	for line := range strings.Lines(p.Log()) {
		var r record
		if json.Unmarshal([]byte(line), &r) == nil {
			all = append(all, r)
		}
	}
	return all
}

// logged reports whether a process has logged a line with this in its message or
// its error.
func logged(p *system.Process, text string) bool {
	return slices.ContainsFunc(records(p), func(r record) bool {
		return strings.Contains(r.Msg, text) || strings.Contains(r.Err, text)
	})
}

// errorsLogged are the message ids of the lines at level error, by how often
// each is there.
func errorsLogged(p *system.Process) map[string]int {
	found := make(map[string]int)
	for _, r := range records(p) {
		if r.Level == "ERROR" {
			found[r.MessageID]++
		}
	}
	return found
}

// pause lets time pass: an outage has to last for something. It is no way to
// wait for an event.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}
