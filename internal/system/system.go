// Package system runs the real programs for a test: order and inventory
// processes with the rights they have in production, on databases and a vhost of
// their own. It places orders as a correct client does, kills, stops and
// restarts the processes, and says in the end whether every accepted order was
// handled exactly once.
//
//	s := system.New(t, system.Options{})
//	order, inventory := s.Start()
//	inventory.Arm(faults.Fault{Step: "consumer.committed", Action: faults.Crash})
//	load := s.Load(100)
//	inventory.WaitCrash("consumer.committed")
//	inventory.Restart()
//	load.Stop()
//	s.Settled()
//	s.Exact()
package system

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/testenv"
	inventorymigrations "example.com/baton/migrations/inventory"
	ordermigrations "example.com/baton/migrations/order"
)

// The queues of the two services.
const (
	InventoryQueue = "inventory.order-events"
	OrderQueue     = "order.inventory-events"
)

// Options say how a system is to be. The zero value is right for most tests.
type Options struct {
	// Servers are where its databases and its vhost are made. Defaults to those
	// that all tests of the run share.
	Servers *testenv.Env
	// Lease of the relays. Defaults to 2 seconds, so that a test need not wait
	// long for what a dead relay had claimed.
	Lease time.Duration
	// RetryTTL is how long a failed delivery waits. Defaults to 300 ms.
	RetryTTL time.Duration
	// Clients is how many requests of Place and Load are under way at once.
	// Defaults to 16.
	Clients int
	// Audit gives the services the management API, to look at their bindings.
	Audit bool
	// Database, when set, changes the address of its database that a service is
	// given: to lead through a pooler, or to have another pool.
	Database func(address string) string
	// WrongClocks builds the programs so that their clocks can be set wrong, by
	// faults.Clock and by the environment variable wrongclock.Offset.
	WrongClocks bool
	// Plain runs the programs as they are in production, without the race
	// detector, which takes several times the memory.
	Plain bool
	// Env are more settings for every process, such as "QUEUE_TYPE=classic".
	Env []string
}

// System is two databases, a vhost, and the processes that a test has started.
// Its methods are for the goroutine of the test; Place and Cancel for any.
type System struct {
	t    testing.TB
	opts Options
	http *http.Client
	logs string // directory of the processes' logs

	// OrderDB and InventoryDB are the services' databases, as the superuser.
	OrderDB, InventoryDB *pgxpool.Pool
	// Vhost is the address of the vhost, as the administrator.
	Vhost string
	// ManagementURL is the management API, as the administrator.
	ManagementURL string
	// Broker looks at the vhost, and breaks things in it.
	Broker *testenv.Manager

	databases map[string]testenv.ServiceDatabase // by program
	env       map[string][]string                // by program

	mu        sync.Mutex
	orders    []*Process // those that clients send requests to
	next      int        // the one for the next request
	accepted  []Order
	cancelled map[string]bool // by order id: the client was told so
	counter   int             // of customers and of processes
	statuses  map[int]int     // of the answers to clients

	copies map[string]int // by event id, as far as the tap was read
}

// New provides for a system and starts nothing. Whatever the test starts on it
// is ended with the test, which fails if a process has ended by itself, has
// reported a data race, or does not stop in order. If the test fails, the ends
// of the processes' logs are shown.
func New(t testing.TB, opts Options) *System {
	t.Helper()
	opts.Lease = cmp.Or(opts.Lease, 2*time.Second)
	opts.RetryTTL = cmp.Or(opts.RetryTTL, 300*time.Millisecond)
	opts.Clients = cmp.Or(opts.Clients, 16)
	servers := opts.Servers
	if servers == nil {
		servers = testenv.Shared(t)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = opts.Clients
	t.Cleanup(transport.CloseIdleConnections)

	s := &System{
		t: t, opts: opts, logs: t.TempDir(),
		// A process that is stopped answers nothing: not waiting for it for long
		// is what a client with a second address does.
		http:      &http.Client{Transport: transport, Timeout: 3 * time.Second},
		cancelled: make(map[string]bool),
		copies:    make(map[string]int),
		statuses:  make(map[int]int),
		env:       make(map[string][]string),
		Vhost:     servers.Vhost(t),
	}
	s.ManagementURL = servers.ManagementURL(t, s.Vhost)
	s.Broker = servers.Management(t, s.Vhost)
	s.databases = map[string]testenv.ServiceDatabase{
		orderProgram:     servers.Migrated(t, ordermigrations.FS),
		inventoryProgram: servers.Migrated(t, inventorymigrations.FS),
	}
	s.OrderDB = testenv.Pool(t, s.databases[orderProgram].Admin)
	s.InventoryDB = testenv.Pool(t, s.databases[inventoryProgram].Admin)

	common := []string{
		"BATON_FAULTS=1",
		"BATON_RELAY_LEASE=" + opts.Lease.String(),
		"BATON_RETRY_TTL=" + opts.RetryTTL.String(),
	}
	if opts.Audit {
		common = append(common, "BATON_MANAGEMENT_URL="+servers.ManagementURL(t, servers.VhostUser(t, s.Vhost, provision.AuditUser)))
	}
	common = append(common, opts.Env...)
	address := opts.Database
	if address == nil {
		address = func(unchanged string) string { return unchanged }
	}
	s.env[orderProgram] = append([]string{
		"ORDER_DATABASE_URL=" + address(s.databases[orderProgram].Service),
		"ORDER_AMQP_URL=" + servers.VhostUser(t, s.Vhost, provision.OrderUser),
	}, common...)
	s.env[inventoryProgram] = append([]string{
		"INVENTORY_DATABASE_URL=" + address(s.databases[inventoryProgram].Service),
		"INVENTORY_AMQP_URL=" + servers.VhostUser(t, s.Vhost, provision.InventoryUser),
	}, common...)
	return s
}

// Start starts one process of each service and returns when both have their
// sessions with the broker. From then on [System.Copies] counts what is sent.
func (s *System) Start() (order, inventory *Process) {
	s.t.Helper()
	order, inventory = s.OrderProcess(), s.InventoryProcess()
	// Together: each waits for the exchange that the other declares.
	order.Launch()
	inventory.Launch()
	order.waitHealthy()
	inventory.waitHealthy()
	s.tap()
	return order, inventory
}

// StartOrder starts one more order process, with more settings, "NAME=value",
// and returns when it takes orders. Clients share their requests out among all
// of them.
func (s *System) StartOrder(env ...string) *Process {
	s.t.Helper()
	p := s.OrderProcess(env...)
	p.Launch()
	p.waitReady()
	return p
}

// StartInventory starts one more inventory process, with more settings, and
// returns when it consumes.
func (s *System) StartInventory(env ...string) *Process {
	s.t.Helper()
	p := s.InventoryProcess(env...)
	p.Launch()
	p.waitReady()
	return p
}

// OrderProcess prepares one more order process, with more settings, and starts
// nothing: see [Process.Launch] and [Process.RestartArmed].
func (s *System) OrderProcess(env ...string) *Process {
	s.t.Helper()
	p := s.process(orderProgram, env)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders = append(s.orders, p)
	return p
}

// InventoryProcess prepares one more inventory process, with more settings, and
// starts nothing.
func (s *System) InventoryProcess(env ...string) *Process {
	s.t.Helper()
	return s.process(inventoryProgram, env)
}

func (s *System) process(program string, env []string) *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counter++
	return newProcess(s, program, fmt.Sprintf("%s-%d", program, s.counter), env)
}

// CloseIdle closes the connections to the services that clients keep for their
// next request.
func (s *System) CloseIdle() { s.http.CloseIdleConnections() }

// Statuses counts what clients were answered, by HTTP status; 0 is no answer.
func (s *System) Statuses() map[int]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.statuses)
}
