// Package compose walks through docker-compose.yml as a newcomer and an operator
// would: start, place an order, stop, start again, scale.
package compose

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/testenv"
)

// patience is how long anything asynchronous may take on a busy machine.
const patience = 60 * time.Second

// B103, B104, B105, B106, B107, B108: with the servers started before and after
// the services, twice in a row and from what the first start has left.
func TestWalk(t *testing.T) {
	p := newProject(t)
	w := &walk{project: p}
	for _, leg := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"clean start", w.cleanStart},
		{"one order", w.oneOrder},
		{"no more rights than needed", w.leastPrivilege},
		{"no root", w.noRoot},
		{"down and up keep orders and messages", w.downAndUp},
		{"services outlast servers that are away", w.serversAway},
		{"three order and two inventory processes", w.scaled},
		{"nothing lost, nothing twice", w.checked},
		{"no password anywhere", w.noPassword},
	} {
		// Each leg goes on where the one before has arrived.
		if !t.Run(leg.name, leg.run) {
			t.FailNow()
		}
	}
}

// walk is where the walk has arrived.
type walk struct {
	*project
	orders, inventories []string // base URLs of the processes
	first               placed
}

type placed struct {
	OrderID string `json:"orderId"`
	EventID string `json:"eventId"`
}

func (w *walk) cleanStart(t *testing.T) {
	w.up(t, []string{base, ports})
	w.find(t)
	for _, url := range []string{w.orders[0], w.inventories[0]} {
		testenv.Eventually(t, patience, url+" is ready", func() error {
			return w.call(t.Context(), http.StatusOK, http.MethodGet, url+"/readyz", "", nil)
		})
	}
	w.up(t, []string{base, ports}) // finds nothing to do
}

// find notes where the services are: a new container has a new port.
func (w *walk) find(t *testing.T) {
	t.Helper()
	all := func(service string, port int) (urls []string) {
		for _, id := range w.containers(t, service) {
			urls = append(urls, "http://"+address(t, id, port))
		}
		return urls
	}
	w.orders, w.inventories = all("order", 8080), all("inventory", 8081)
}

// place places an order for one unit at the n-th order process, round and round.
func (w *walk) place(t *testing.T, n int, sku string) placed {
	t.Helper()
	body := fmt.Sprintf(`{"customerId":"C10086","amount":199.00,"currency":"CNY","items":[{"sku":%q,"quantity":1}]}`, sku)
	var p placed
	if err := w.call(t.Context(), http.StatusCreated, http.MethodPost, w.orders[n%len(w.orders)]+"/orders", body, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *walk) placeMany(t *testing.T, count int, sku string) []placed {
	t.Helper()
	var all []placed
	for n := range count {
		all = append(all, w.place(t, n, sku))
	}
	return all
}

// reserved waits until each order is, and sku's stock says the same.
func (w *walk) reserved(t *testing.T, sku string, all ...placed) {
	t.Helper()
	for _, o := range all {
		testenv.Eventually(t, patience, o.OrderID+" is reserved", func() error {
			var order struct {
				Status string `json:"status"`
			}
			err := w.call(t.Context(), http.StatusOK, http.MethodGet, w.orders[0]+"/orders/"+o.OrderID, "", &order)
			return errors.Join(err, testenv.Want(order.Status, "reserved"))
		})
	}
	var stock struct {
		Reserved int `json:"reserved"`
	}
	w.get(t, w.inventories[0]+"/stock/"+sku, &stock)
	if stock.Reserved != len(all) {
		t.Errorf("%d units of %s are reserved for %d orders of one", stock.Reserved, sku, len(all))
	}
}

// timeline is what a service knows of an order.
type timeline struct {
	OrderID string `json:"orderId"`
	EventID string `json:"eventId"`
	Steps   []struct {
		Step    string    `json:"step"`
		At      time.Time `json:"at"`
		EventID string    `json:"eventId"`
	} `json:"steps"`
}

// of are the steps of one event.
func (tl timeline) of(eventID string) (steps []string) {
	for _, s := range tl.Steps {
		if s.EventID == eventID {
			steps = append(steps, s.Step)
		}
	}
	return steps
}

func (w *walk) oneOrder(t *testing.T) {
	w.first = w.place(t, 0, "SKU-1")
	w.reserved(t, "SKU-1", w.first)
	// One event id from the order's transaction to the reservation's.
	for url, want := range map[string][]string{
		w.orders[0]:      {"order.accepted", "order.committed", "relay.settled"},
		w.inventories[0]: {"inbox.recorded", "inventory.reserved"},
	} {
		var tl timeline
		w.get(t, url+"/timeline/"+w.first.OrderID, &tl)
		if tl.EventID != w.first.EventID || !slices.Equal(tl.of(w.first.EventID), want) {
			t.Errorf("timeline has event %s with steps %v, want event %s with %v", tl.EventID, tl.of(w.first.EventID), w.first.EventID, want)
		}
	}
}

func (w *walk) leastPrivilege(t *testing.T) {
	database := func(role, variable, name string) (*pgx.Conn, error) {
		u := url.URL{
			Scheme: "postgres", User: url.UserPassword(role, w.password[variable]),
			Host: address(t, w.containers(t, "postgres")[0], 5432), Path: name,
		}
		conn, err := pgx.Connect(t.Context(), u.String())
		if err == nil {
			t.Cleanup(func() { conn.Close(context.Background()) })
		}
		return conn, err
	}
	const denied = "42501"
	wantDenied := func(what string, err error) {
		t.Helper()
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != denied {
			t.Errorf("%s: %v, want SQLSTATE %s", what, err, denied)
		}
	}
	for _, s := range []struct{ role, variable, own, other, table string }{
		{"order_service", "ORDER_DATABASE_PASSWORD", "orders", "inventory", "orders"},
		{"inventory_service", "INVENTORY_DATABASE_PASSWORD", "inventory", "orders", "stock"},
	} {
		conn, err := database(s.role, s.variable, s.own)
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range []string{
			`create table mine (id int)`,
			`create schema mine`,
			`drop table ` + s.table,
			`alter table ` + s.table + ` add column mine int`,
			`truncate ` + s.table,
			`update goose_db_version set version_id = 0`,
		} {
			_, err := conn.Exec(t.Context(), statement)
			wantDenied(s.role+": "+statement, err)
		}
		_, err = database(s.role, s.variable, s.other)
		wantDenied(s.role+" connects to "+s.other, err)
	}

	host := address(t, w.containers(t, "rabbitmq")[0], 5672)
	broker := func(user, variable string) *amqp.Connection {
		t.Helper()
		u := url.URL{Scheme: "amqp", User: url.UserPassword(user, w.password[variable]), Host: host}
		conn, err := amqp.Dial(u.String())
		if err != nil {
			t.Fatalf("%s: %v", user, err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	for _, s := range []struct{ user, variable, queue, exchange, source string }{
		{"order", "ORDER_AMQP_PASSWORD", "inventory.order-events", "inventory.events", "inventory.order-events"},
		{"inventory", "INVENTORY_AMQP_PASSWORD", "order.inventory-events", "orders.events", "order.inventory-events"},
		{"audit", "BATON_AUDIT_PASSWORD", "audit", "orders.events", "order.inventory-events"},
	} {
		conn := broker(s.user, s.variable)
		for what, try := range map[string]func(*amqp.Channel) error{
			"declares queue " + s.queue: func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(s.queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
				return err
			},
			"declares exchange " + s.exchange: func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(s.exchange, "topic", true, false, false, false, nil)
			},
			"publishes to " + s.exchange: func(ch *amqp.Channel) error {
				return publish(t, ch, s.exchange, "order.created")
			},
			"publishes past the exchanges into " + s.queue: func(ch *amqp.Channel) error {
				return publish(t, ch, "", s.queue)
			},
			"reads " + s.source: func(ch *amqp.Channel) error {
				_, _, err := ch.Get(s.source, false)
				return err
			},
		} {
			ch, err := conn.Channel()
			if err != nil {
				t.Fatal(err)
			}
			var amqpErr *amqp.Error
			if err := try(ch); !errors.As(err, &amqpErr) || amqpErr.Code != amqp.AccessRefused {
				t.Errorf("%s %s: %v, want %d", s.user, what, err, amqp.AccessRefused)
			}
		}
	}
	if _, err := amqp.Dial("amqp://guest:guest@" + host); !errors.Is(err, amqp.ErrCredentials) {
		t.Errorf("guest: %v, want %v", err, amqp.ErrCredentials)
	}
}

// publish returns nil if the broker took a message, or why it closed the channel.
func publish(t *testing.T, ch *amqp.Channel, exchange, key string) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	c, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), exchange, key, false, false, amqp.Publishing{})
	if err != nil {
		return err
	}
	if c.Wait() {
		return nil
	}
	return <-closed
}

func (w *walk) noRoot(t *testing.T) {
	for _, service := range []string{"setup", "order", "inventory"} {
		for _, id := range w.containers(t, service) {
			c := inspect(t, id)
			if user, _, _ := strings.Cut(c.Config.User, ":"); user == "" || user == "0" || user == "root" {
				t.Errorf("%s runs as user %q", c.Name, c.Config.User)
			}
			if !c.HostConfig.ReadonlyRootfs {
				t.Errorf("%s can write to its image", c.Name)
			}
		}
	}
	// These images start as root and step down themselves.
	for _, service := range []string{"postgres", "rabbitmq"} {
		id := w.containers(t, service)[0]
		server := fmt.Sprint(inspect(t, id).State.Pid)
		top := output(t, exec.CommandContext(t.Context(), "docker", "top", id, "-eo", "pid,uid"))
		if !slices.ContainsFunc(strings.Split(top, "\n"), func(line string) bool {
			f := strings.Fields(line)
			return len(f) == 2 && f[0] == server && f[1] != "0"
		}) {
			t.Errorf("%s: process %s runs as root, or is not there:\n%s", service, server, top)
		}
	}
}

func (w *walk) downAndUp(t *testing.T) {
	w.run(t, "stop", "inventory")
	if c := inspect(t, w.containers(t, "inventory")[0]); c.State.ExitCode != 0 {
		t.Errorf("%s ended with exit code %d when it was asked to stop", c.Name, c.State.ExitCode)
	}
	waiting := w.placeMany(t, 5, "SKU-2")
	for _, o := range waiting {
		// From here on it is the broker that has them.
		testenv.Eventually(t, patience, o.OrderID+" is published", func() error {
			var tl timeline
			err := w.call(t.Context(), http.StatusOK, http.MethodGet, w.orders[0]+"/timeline/"+o.OrderID, "", &tl)
			if err == nil && !slices.Contains(tl.of(o.EventID), "relay.settled") {
				err = fmt.Errorf("steps %v", tl.of(o.EventID))
			}
			return err
		})
	}
	w.down(t)

	w.up(t, []string{base, ports}, "order")
	w.queue(t, "inventory.order-events", queue{Messages: len(waiting)})
	w.up(t, []string{base, ports})
	w.find(t)
	w.reserved(t, "SKU-2", waiting...)
	w.reserved(t, "SKU-1", w.first)
}

// queue is what the management API says of a queue.
type queue struct {
	Messages  int `json:"messages"`
	Consumers int `json:"consumers"`
}

// queue waits until a queue is as it should be: the management API's numbers are
// some seconds old.
func (w *walk) queue(t *testing.T, name string, want queue) {
	t.Helper()
	u := url.URL{
		Scheme: "http", User: url.UserPassword("admin", w.password["RABBITMQ_DEFAULT_PASS"]),
		Host: address(t, w.containers(t, "rabbitmq")[0], 15672), Path: "/api/queues///" + name, RawPath: "/api/queues/%2F/" + name,
	}
	testenv.Eventually(t, patience, "queue "+name, func() error {
		var got queue
		err := w.call(t.Context(), http.StatusOK, http.MethodGet, u.String(), "", &got)
		return errors.Join(err, testenv.Want(got, want))
	})
}

// serversAway starts the services before the servers, and takes orders while the
// broker is still away.
func (w *walk) serversAway(t *testing.T) {
	w.run(t, "stop", "postgres", "rabbitmq", "order", "inventory")
	for _, service := range []string{"order", "inventory"} {
		// Not by compose, which would start the servers with them.
		output(t, exec.CommandContext(t.Context(), "docker", "start", w.containers(t, service)[0]))
	}
	w.find(t)
	for _, url := range []string{w.orders[0], w.inventories[0]} {
		testenv.Eventually(t, patience, url+" says that it is not ready", func() error {
			return w.call(t.Context(), http.StatusServiceUnavailable, http.MethodGet, url+"/readyz", "", nil)
		})
		w.get(t, url+"/livez", nil)
	}

	w.run(t, "start", "postgres")
	testenv.Eventually(t, patience, "the order API needs no broker", func() error {
		var ready struct {
			Status string `json:"status"`
		}
		err := w.call(t.Context(), http.StatusOK, http.MethodGet, w.orders[0]+"/readyz", "", &ready)
		return errors.Join(err, testenv.Want(ready.Status, "degraded"))
	})
	o := w.place(t, 0, "SKU-3")

	w.run(t, "start", "rabbitmq")
	w.reserved(t, "SKU-3", o)
	for _, service := range []string{"order", "inventory"} {
		if c := inspect(t, w.containers(t, service)[0]); c.RestartCount != 0 {
			t.Errorf("%s was restarted %d times", c.Name, c.RestartCount)
		}
	}
}

func (w *walk) scaled(t *testing.T) {
	w.keepLogs(t) // up makes new containers
	w.up(t, []string{base, scale, ports})
	w.find(t)
	if len(w.orders) != 3 || len(w.inventories) != 2 {
		t.Fatalf("%d order and %d inventory processes", len(w.orders), len(w.inventories))
	}
	w.queue(t, "inventory.order-events", queue{Consumers: 2})
	w.queue(t, "order.inventory-events", queue{Consumers: 3})
	w.reserved(t, "SKU-4", w.placeMany(t, 60, "SKU-4")...)

	w.keepLogs(t)
	w.up(t, []string{base, ports})
	w.find(t)
	if len(w.orders) != 1 || len(w.inventories) != 1 {
		t.Fatalf("%d order and %d inventory processes", len(w.orders), len(w.inventories))
	}
	w.reserved(t, "SKU-5", w.place(t, 0, "SKU-5"))
}

// checked runs the checker where it can reach everything.
func (w *walk) checked(t *testing.T) {
	out := w.run(t, "run", "--rm", "--no-deps", "setup", "baton", "check", "--json")
	w.said.WriteString(out)
	if !strings.HasPrefix(out, `{"ok":true,"orders":`) || !strings.Contains(out, `"broker":"checked"`) {
		t.Errorf("check: %s", out)
	}
}

// noPassword looks through all logs of the walk, most answers, and the metrics.
func (w *walk) noPassword(t *testing.T) {
	for _, url := range []string{w.orders[0], w.inventories[0]} {
		err := w.call(t.Context(), http.StatusOK, http.MethodGet, url+"/metrics", "", nil)
		if err != nil {
			t.Error(err)
		}
	}
	w.down(t)
	said := w.said.String()
	if n := strings.Count(said, "\n"); n < 100 {
		t.Fatalf("only %d lines of logs and answers", n)
	}
	for variable, value := range w.password {
		if i := strings.Index(said, value); i >= 0 {
			line := said[strings.LastIndexByte(said[:i], '\n')+1:]
			line, _, _ = strings.Cut(line, "\n")
			t.Errorf("$%s is in the log or an answer: %s", variable, line)
		}
	}
}
