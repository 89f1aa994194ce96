package zoo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/check"
	"example.com/baton/internal/proxy"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// world is a system in which one leg is either the product's or a mistake. All
// the rest of it is the product in either case.
type world struct {
	t       *testing.T
	mistake Mistake
	sys     *system.System
	wrong   bool // it is the mistake's turn
	proxy   *proxy.Proxy
	src     check.Sources
	tap     *check.Tap // nil unless a scenario asks for it

	order, inventory *system.Process
	acting           []actor // besides these two
}

const retryTTL = 300 * time.Millisecond

func newWorld(t *testing.T, m Mistake) *world {
	t.Helper()
	w := &world{t: t, mistake: m, sys: system.New(t, system.Options{RetryTTL: retryTTL})}
	var idle []string
	if m.Leg == Relaying {
		// This process takes answers. Its relay looks for work once an hour, so
		// that it leaves all of it to others.
		idle = []string{"BATON_RELAY_POLL=1h"}
	}
	w.order, w.inventory = w.sys.OrderProcess(idle...), w.sys.InventoryProcess()
	// Together: each waits for the exchange that the other declares.
	w.order.Launch()
	w.inventory.Launch()
	w.healthy(w.order)
	w.healthy(w.inventory)

	broker, err := check.NewBroker(w.managementURL(), path.Base(w.sys.Vhost))
	if err != nil {
		t.Fatal(err)
	}
	broker.Lag = 3 * time.Second // the servers of a test run sample once a second
	w.src = check.Sources{Orders: w.sys.OrderDB, Inventory: w.sys.InventoryDB, Broker: broker}
	return w
}

func (w *world) healthy(p *system.Process) {
	w.t.Helper()
	w.until(p.Name+" is healthy", func() error {
		_, body, err := p.Get("/readyz")
		var answer struct{ Status string }
		if err == nil {
			err = json.Unmarshal(body, &answer)
		}
		return cmp.Or(err, testenv.Want(answer.Status, "ok"))
	})
}

func (w *world) managementURL() string {
	return testenv.Shared(w.t).ManagementURL(w.t, w.sys.Vhost)
}

// play lets a scenario happen, and counts if it is one without faults.
func (w *world) play(s scenario) {
	w.t.Helper()
	if s.noFaults {
		var err error
		if w.tap, err = check.StartTap(w.t.Context(), w.sys.Vhost, w.managementURL()); err != nil {
			w.t.Fatal(err)
		}
	}
	s.play(w)
}

func (w *world) until(what string, try func() error) {
	w.t.Helper()
	testenv.Eventually(w.t, patience, what, try)
}

// start starts whoever does the leg: the product's process, or the mistake.
func (w *world) start(fault string) actor {
	w.t.Helper()
	var a actor
	switch {
	case w.wrong:
		service, db := "ORDER", w.sys.OrderDB
		if w.mistake.Leg == Consuming {
			service, db = "INVENTORY", w.sys.InventoryDB
		}
		a = startAnimal(w.t, w.mistake.Name, fault,
			service+"_DATABASE_URL="+db.Config().ConnString(), service+"_AMQP_URL="+w.brokerURL(),
			"BATON_RETRY_TTL="+retryTTL.String(), "ZOO_ORDERS=5")
	case w.mistake.Leg == Relaying:
		p := w.sys.OrderProcess("BATON_RELAY_POLL=100ms", "ORDER_AMQP_URL="+w.brokerURL())
		s := startService(p, fault)
		if s.fault.Action == "" {
			w.healthy(p)
		}
		a = s
	case w.inventory.Running():
		a = startService(w.sys.InventoryProcess(), fault)
	default:
		return startService(w.inventory, fault)
	}
	w.acting = append(w.acting, a)
	return a
}

func (w *world) brokerURL() string {
	w.t.Helper()
	if w.proxy == nil {
		return w.sys.Vhost
	}
	url, err := w.proxy.Through(w.sys.Vhost)
	if err != nil {
		w.t.Fatal(err)
	}
	return url
}

// storeOrders stores orders with their events, as the product does, and leaves
// it to others to send them.
func (w *world) storeOrders(n int) (eventIDs []string) {
	w.t.Helper()
	s := &stage{db: w.sys.OrderDB, orders: n}
	err := s.placeOrders(w.t.Context(), func(ctx context.Context, o order) error {
		m, err := message(o.event)
		if err != nil {
			return err
		}
		eventIDs = append(eventIDs, m.ID)
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			return errors.Join(insertOrder(ctx, tx, o), outbox.Enqueue(ctx, tx, m))
		})
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return eventIDs
}

// rows counts the order service's rows for which condition holds.
func (w *world) rows(condition string) int {
	w.t.Helper()
	var n int
	if err := w.sys.OrderDB.QueryRow(w.t.Context(), `select count(*) from outbox_messages where `+condition).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) untilRows(condition string, want int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d rows where %s", want, condition), func() error { return testenv.Want(w.rows(condition), want) })
}

// sendAgain publishes a copy of an order.created, as a relay does that has lost
// its lease.
func (w *world) sendAgain(eventID string) {
	w.t.Helper()
	m := outbox.Message{ID: eventID}
	const find = `select event_type, occurred_at, payload from outbox_messages where event_id = $1`
	if err := w.sys.OrderDB.QueryRow(w.t.Context(), find, eventID).Scan(&m.Type, &m.OccurredAt, &m.Payload); err != nil {
		w.t.Fatal(err)
	}
	w.sys.Publish(events.OrderExchange, m.Type, amqp.Publishing{
		MessageId: m.ID, Type: m.Type, Timestamp: m.OccurredAt, ContentType: "application/json", Body: m.Payload,
	})
}

// inQueues is how many messages wait in queues, or are in a consumer's hands.
func (w *world) inQueues(names ...string) (n int) {
	w.t.Helper()
	queues, err := w.sys.Broker.Queues(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range names {
		n += queues[name].Messages
	}
	return n
}

func (w *world) unbind(exchange, queue, key string) {
	w.t.Helper()
	if err := w.sys.Broker.DeleteBinding(w.t.Context(), exchange, queue, key); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) bind(exchange, queue, key string) {
	w.t.Helper()
	if err := testenv.Channel(w.t, w.sys.Vhost).QueueBind(queue, key, exchange, false, nil); err != nil {
		w.t.Fatal(err)
	}
}

// limit makes a queue reject what goes beyond a number of messages, until it is
// told 0.
func (w *world) limit(queue string, messages int) {
	w.t.Helper()
	const policy = "/policies/{vhost}/full"
	method, body := http.MethodPut, any(map[string]any{
		"pattern": "^" + queue + "$", "apply-to": "queues", "definition": map[string]int{"max-length": messages},
	})
	if messages == 0 {
		method, body = http.MethodDelete, nil
	}
	if err := w.sys.Broker.Do(w.t.Context(), method, policy, body, nil); err != nil {
		w.t.Fatal(err)
	}
}

// counted is how often messages were published and delivered, by their ids, as
// the broker's firehose has it.
func (w *world) counted() (copies, deliveries map[string]int) {
	w.t.Helper()
	copies, deliveries, err := w.tap.Read(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return copies, deliveries
}

// look returns what the checker finds.
func (w *world) look(noFaults bool) check.Report {
	w.t.Helper()
	opts := check.Options{Quiet: true, NoFaults: noFaults}
	if w.tap != nil {
		opts.Copies, opts.Deliveries = w.counted()
	}
	report, err := check.Run(w.t.Context(), w.src, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}

// forget ends whoever was started, and empties everything for the next turn.
func (w *world) forget() {
	w.t.Helper()
	ctx := w.t.Context()
	for _, a := range w.acting {
		a.end()
	}
	w.acting = nil
	if w.tap != nil {
		if err := w.tap.Stop(ctx); err != nil {
			w.t.Fatal(err)
		}
		w.tap = nil
	}
	_, err := w.sys.OrderDB.Exec(ctx, `truncate orders, order_answers, idempotency_keys, outbox_messages, inbox_messages, inbox_suspects`)
	if err == nil {
		_, err = w.sys.InventoryDB.Exec(ctx, `
			truncate inventory_orders, inventory_reservations, outbox_messages, inbox_messages, inbox_suspects;
			update stock set reserved = 0`)
	}
	ch := testenv.Channel(w.t, w.sys.Vhost)
	var queues []string
	for _, queue := range []string{system.InventoryQueue, system.OrderQueue} {
		queues = append(queues, queue, queue+".retry", queue+".dlq")
	}
	for _, name := range queues {
		if err == nil {
			_, err = ch.QueuePurge(name, false)
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
	// What the broker tells of its queues is a second old.
	w.until("the queues are empty", func() error { return testenv.Want(w.inQueues(queues...), 0) })
}

// violation finds what a report says of a rule.
func violation(r check.Report, rule string) (check.Violation, bool) {
	i := slices.IndexFunc(r.Violations, func(v check.Violation) bool { return v.Rule == rule })
	if i < 0 {
		return check.Violation{}, false
	}
	return r.Violations[i], true
}
