package check_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/check"
	"example.com/baton/internal/provision"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

func TestMain(m *testing.M) { os.Exit(system.Main(m)) }

// damage is something that a broken product could do, and the rule that it
// breaks.
type damage struct {
	rule      string
	order     string // SQL
	inventory string
	opts      func(*check.Options)
}

const (
	// An order that is reserved, and the event that did it.
	anOrder = `(select min(order_id) from orders where status = 'reserved')`
	itsOne  = `(select min(event_id) from outbox_messages where event_type = 'order.created')`
	held    = `(select min(order_id) from inventory_orders where state = 'reserved')`

	dropLinesUnique  = `alter table inventory_reservations drop constraint inventory_reservations_order_id_sku_key; `
	forgetInboxOfOne = `delete from inbox_messages where event_id = (select event_id from inventory_orders where order_id = ` + held + `); `
	forgetOne        = forgetInboxOfOne + `
		delete from inventory_reservations where order_id = ` + held + `;
		update stock s set reserved = (select coalesce(sum(quantity), 0) from inventory_reservations r where r.sku = s.sku and r.status = 'reserved');
		delete from outbox_messages where aggregate_id = ` + held + `;
		delete from inventory_orders where order_id = ` + held
)

func quiet(o *check.Options)    { o.Quiet = true }
func noFaults(o *check.Options) { o.NoFaults = true }

var damages = []damage{
	{rule: "accounting", inventory: forgetOne},
	{rule: "accounting", inventory: `delete from inventory_orders where order_id = ` + held},
	{rule: "event-lost", inventory: forgetOne},
	{rule: "event-lost", inventory: forgetInboxOfOne},
	{rule: "answer-lost", order: `delete from inbox_messages where event_id = (select min(event_id) from inbox_messages)`},
	{rule: "order-without-event", order: `delete from outbox_messages where event_id = ` + itsOne},
	{rule: "order-without-event", order: `update orders set event_id = 'another' where order_id = ` + anOrder},
	{rule: "order-without-event", order: `delete from outbox_messages where event_type = 'order.cancelled'`},
	{rule: "order-without-event", order: `update orders set status = 'cancelled' where order_id = ` + anOrder},
	{rule: "event-without-order", order: `insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at)
		values ('x', 'ORD-20260101-000001', 1, 'order.created', '{}', now())`},
	{rule: "sequence-gap", order: `update outbox_messages set sequence = 3 where event_type = 'order.cancelled'`},
	{rule: "sequence-gap", order: `update orders set last_sequence = 2 where order_id = ` + anOrder},
	{rule: "reservation-without-order", inventory: `insert into inventory_orders (order_id, state, event_id) values ('ORD-20260101-000001', 'cancelled_first', 'x')`},
	{rule: "reservation-without-order", inventory: `insert into inventory_reservations (order_id, sku, quantity, status, event_id)
		values ('ORD-20260101-000001', 'SKU-1', 1, 'reserved', 'x')`},
	{rule: "reservation-without-order", order: `delete from order_answers where order_id = ` + anOrder + `; delete from orders where order_id =
		(select order_id from orders except select order_id from order_answers)`},
	{rule: "line-twice", inventory: dropLinesUnique + `insert into inventory_reservations select * from inventory_reservations where order_id = ` + held},
	{rule: "line-twice", inventory: `delete from inventory_reservations where order_id = ` + held},
	{rule: "line-twice", inventory: `update inventory_reservations set quantity = quantity * 2 where order_id = ` + held},
	{rule: "line-twice", inventory: `update inventory_reservations set status = 'released', released_at = now() where order_id = ` + held},
	{rule: "line-twice", order: `update orders set items = '[{"sku":"SKU-1","quantity":9}]' where order_id = ` + anOrder},
	{rule: "stock", inventory: `update stock set reserved = reserved + 1 where sku = 'SKU-9'`},
	{rule: "stock", inventory: `alter table stock drop constraint stock_reserved; update stock set on_hand = 0`},
	{rule: "status-disagrees", order: `update orders set status = 'created' where order_id = ` + anOrder},
	{rule: "status-disagrees", order: `update orders set status = 'rejected' where order_id = ` + anOrder},
	{rule: "status-disagrees", order: `update orders set status = 'reserved' where status = 'cancelled'`},
	{rule: "status-disagrees", inventory: `update inventory_orders set state = 'rejected', reason = 'x' where order_id = ` + held},
	{rule: "status-disagrees", inventory: `update inventory_orders set state = 'released', cancel_event_id = 'x' where order_id = ` + held},
	{rule: "status-disagrees", inventory: `delete from inventory_orders where order_id = ` + held},
	{rule: "answers", order: `update order_answers set effect = 'contradiction' where order_id = ` + anOrder},
	{rule: "answers", order: `delete from order_answers where order_id = ` + anOrder},
	{rule: "answers", order: `insert into order_answers select event_id || '9', order_id, event_type, reason, effect, order_status
		from order_answers order by order_id limit 1`},
	{rule: "answers", inventory: `delete from outbox_messages where aggregate_id = ` + held},
	{rule: "answers", inventory: `update outbox_messages set event_type = 'inventory.rejected' where aggregate_id = ` + held},
	{rule: "event-unknown", inventory: `insert into inbox_messages (consumer_name, event_id) values ('inventory.order-events', 'x')`},
	{rule: "event-unknown", order: `insert into inbox_messages (consumer_name, event_id) values ('order.inventory-events', 'x')`},
	{rule: "event-unknown", opts: func(o *check.Options) { o.Copies["x"] = 1 }},
	{rule: "inbox-twice", inventory: `insert into inbox_messages (consumer_name, event_id) values ('another', (select max(event_id) from inbox_messages))`},
	{rule: "inbox-without-work", inventory: `delete from inventory_orders where order_id = ` + held},
	{rule: "inbox-without-work", inventory: `update inventory_orders set state = 'reserved', cancel_event_id = null where state = 'released';
		update inventory_reservations set status = 'reserved', released_at = null where status = 'released'`},
	{rule: "inbox-without-work", order: `delete from order_answers where order_id = ` + anOrder},
	{rule: "work-without-inbox", inventory: forgetInboxOfOne},
	{rule: "work-without-inbox", inventory: `delete from inbox_messages where event_id = (select max(cancel_event_id) from inventory_orders)`},
	{rule: "work-without-inbox", order: `delete from inbox_messages`},
	{rule: "claim-expired", order: `update outbox_messages set status = 'Processing', published_at = null, locked_by = 'x',
		locked_until = now() - interval '1 minute' where event_id = ` + itsOne},
	{rule: "claim-expired", inventory: `update outbox_messages set status = 'Processing', published_at = null, locked_by = 'x',
		locked_until = now() - interval '1 second' where aggregate_id = ` + held, opts: quiet},
	{rule: "suspect-left", inventory: `insert into inbox_suspects values ('x', 'y', 1, now() - interval '1 hour')`},
	{rule: "suspect-left", order: `insert into inbox_suspects values ('x', 'y', 1, now() - interval '1 second')`, opts: quiet},
	{rule: "too-few-copies", opts: func(o *check.Options) { delete(o.Copies, slices.Sorted(maps.Keys(o.Copies))[0]) }},
	{rule: "too-many-copies", opts: func(o *check.Options) { o.Copies[slices.Sorted(maps.Keys(o.Copies))[0]]++ }},
	{rule: "too-many-deliveries", opts: func(o *check.Options) { o.Deliveries[slices.Sorted(maps.Keys(o.Deliveries))[0]] = 5 }},
	{rule: "attempt-charged", order: `update outbox_messages set attempt_count = 1 where event_id = ` + itsOne, opts: noFaults},
	{rule: "not-quiet", order: `update outbox_messages set status = 'Pending', published_at = null where event_id = ` + itsOne, opts: quiet},
	{rule: "exception", order: `update outbox_messages set status = 'Failed', published_at = null, failed_at = now() where event_id = ` + itsOne,
		opts: func(o *check.Options) { o.Except = []string{"unreadable"} }},
	{rule: "exception", opts: func(o *check.Options) { o.Except = []string{} }},
	{rule: "exception", opts: func(o *check.Options) { o.Except = []string{"unreadable", "another"} }},
}

// A checker is worth nothing if it cannot say no. Every rule has to have a
// damage that breaks it, and the whole system, undamaged, breaks none.
func TestDamage(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	tap, err := check.StartTap(t.Context(), s.Vhost, s.ManagementURL)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	orders := s.Place(6)
	if !s.Cancel(orders[0]) {
		t.Error("an order could not be cancelled")
	}
	s.Place(1, events.Item{SKU: "SKU-RARE", Quantity: 11})
	s.Publish("inventory.dlx", system.InventoryQueue, amqp.Publishing{MessageId: "unreadable", Body: []byte("{")})
	s.Settled()
	copies, deliveries := readTap(t, tap, 16)
	delete(copies, "unreadable") // it came from no outbox, and we know

	all := check.Options{Copies: copies, Deliveries: deliveries, NoFaults: true, Quiet: true, Except: []string{"unreadable"}}
	sound, err := check.Run(t.Context(), s.Sources(), all)
	if err != nil {
		t.Fatal(err)
	}
	want := check.Report{
		OK: true, Orders: 7, Reserved: 5, Rejected: 1, Released: 1, Broker: "checked",
		Messages: check.Messages{DeadLetters: 1}, Violations: []check.Violation{},
	}
	if diff := cmp.Diff(want, sound); diff != "" {
		t.Fatalf("the undamaged system (-want +got):\n%s", diff)
	}

	seen := map[string]bool{"stuck": true} // TestStuck has it
	for _, d := range damages {
		seen[d.rule] = true
		opts := check.Options{Copies: maps.Clone(copies), Deliveries: maps.Clone(deliveries), NoFaults: true}
		if d.opts != nil {
			d.opts(&opts)
		}
		report := lookDamaged(t, s, d, opts)
		i := slices.IndexFunc(report.Violations, func(v check.Violation) bool { return v.Rule == d.rule })
		if i < 0 || report.OK {
			t.Errorf("%s%s breaks %v, want %s", d.order, d.inventory, report.Violations, d.rule)
			continue
		}
		if v := report.Violations[i]; d.rule != "stock" && len(v.EventIDs)+len(v.OrderIDs) == 0 {
			t.Errorf("%s%s: %s names nothing", d.order, d.inventory, v.Rule)
		}
	}
	for _, rule := range check.Rules() {
		if !seen[rule.Name] {
			t.Errorf("no damage breaks %s", rule.Name)
		}
	}
}

// lookDamaged does damage in a transaction, looks at it, and undoes it.
func lookDamaged(t *testing.T, s *system.System, d damage, opts check.Options) check.Report {
	t.Helper()
	src := s.Sources()
	for _, side := range []struct {
		sql string
		db  *check.Querier
	}{{d.order, &src.Orders}, {d.inventory, &src.Inventory}} {
		if side.sql == "" {
			continue
		}
		tx, err := (*side.db).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context())
		if _, err := tx.Exec(t.Context(), side.sql); err != nil {
			t.Fatalf("%s: %v", side.sql, err)
		}
		*side.db = tx
	}
	report, err := check.Run(t.Context(), src, opts)
	if err != nil {
		t.Fatalf("%s%s: %v", d.order, d.inventory, err)
	}
	return report
}

// readTap reads the tap until it has seen n messages.
func readTap(t *testing.T, tap *check.Tap, n int) (copies, deliveries map[string]int) {
	t.Helper()
	testenv.Eventually(t, time.Minute, "the tap has everything", func() (err error) {
		if copies, deliveries, err = tap.Read(t.Context()); err != nil {
			return err
		}
		return testenv.Want(len(copies), n)
	})
	return copies, deliveries
}

// Nothing true may be reported as a violation while everything moves: orders come
// in, others are cancelled, and processes die with work in hand.
func TestLive(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order, inventory := s.Start()
	load := s.Load(50)
	looks, inFlight := 0, 0
	look := func() {
		t.Helper()
		report, err := check.Run(t.Context(), s.Sources(), check.Options{})
		if err != nil {
			t.Fatal(err)
		}
		looks++
		if report.InFlight > 0 || !report.Quiet() {
			inFlight++
		}
		if !report.OK {
			t.Errorf("look %d: %+v", looks, report.Violations)
		}
	}
	for range 2 {
		for _, p := range []*system.Process{order, inventory} {
			for range 4 {
				look()
				for _, o := range s.Place(2) {
					s.Cancel(o)
				}
			}
			p.Kill()
			for range 4 {
				look()
			}
			p.Restart()
		}
	}
	load.Stop()
	if err := check.Settle(t.Context(), s.Sources(), time.Minute); err != nil {
		t.Fatal(err)
	}
	report, err := check.Run(t.Context(), s.Sources(), check.Options{Quiet: true})
	if err != nil || !report.OK {
		t.Errorf("at the end: %+v, %v", report, err)
	}
	if inFlight == 0 {
		t.Errorf("in none of %d looks anything was in flight: the test has shown nothing", looks)
	}
	t.Logf("%d looks, %d with something in flight; %d orders, %d of them released or cancelled first", looks, inFlight,
		report.Orders, report.Released+report.CancelledFirst)
}

// later is a database in which something happens just before it is read.
type later struct {
	*pgxpool.Pool
	happens func()
}

func (l later) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	l.happens()
	return l.Pool.BeginTx(ctx, opts)
}

// What happens between the readings of the two databases is no violation: new
// orders with their answers, cancellations, and cancellations of new orders.
func TestBetweenTheReadings(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	s.Start()
	old := s.Place(3)
	s.Settled()
	src := s.Sources()
	src.Inventory = later{s.InventoryDB, func() {
		s.Cancel(old[0])
		s.Cancel(s.Place(3)[0])
		s.Settled()
	}}
	report, err := check.Run(t.Context(), src, check.Options{})
	if err != nil || !report.OK || report.Orders != 3 || report.Reserved != 2 || report.Released != 1 {
		t.Errorf("%+v, %v; want the three old orders, and no violation", report, err)
	}
}

// What does not move is no violation as long as somebody works on it.
func TestStuck(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order, inventory := s.Start()
	inventory.Stop()
	s.Place(3)
	for _, waits := range []struct {
		what string
		stop func()
	}{
		{"nobody consumes inventory.order-events", func() {}},
		{"none of the 2 messages that were not sent at first has been sent since", func() {
			order.Stop()
			s.StartOrder("ORDER_AMQP_URL=amqp://nobody@127.0.0.1:1/")
			s.Place(2)
		}},
	} {
		waits.stop()
		testenv.Eventually(t, time.Minute, waits.what, func() error {
			report, err := check.RunSettled(t.Context(), s.Sources(), check.Options{}, 2*time.Second)
			if err != nil {
				return err
			}
			if len(report.Violations) != 1 || report.Violations[0].Rule != "stuck" || len(report.Violations[0].EventIDs) == 0 {
				return fmt.Errorf("violations %+v, want stuck alone", report.Violations)
			}
			return testenv.Want(strings.Contains(report.Violations[0].Detail, waits.what), true)
		})
	}
	report, err := check.Run(t.Context(), s.Sources(), check.Options{})
	if err != nil || !report.OK || report.InFlight != 5 {
		t.Errorf("without waiting: %+v, %v; want 5 orders in flight and no violation", report, err)
	}
}

// Tables are read in pages, and every row counts.
func TestPages(t *testing.T) {
	t.Parallel()
	const n = 2500
	s := system.New(t, system.Options{})
	fill(t, s, n)
	// A broker that has none of the queues yet has no messages either.
	report, err := check.Run(t.Context(), s.Sources(), check.Options{Quiet: true})
	if err != nil || !report.OK || report.Orders != n || report.Reserved != n {
		t.Errorf("%+v, %v", report, err)
	}
	execute(t, s.InventoryDB, `delete from inventory_reservations where order_id in ('ORD-1', 'ORD-999', 'ORD-2500')`)
	report, err = check.Run(t.Context(), s.Sources(), check.Options{})
	if err != nil || len(report.Violations) != 2 || report.Violations[0].Rule != "line-twice" || report.Violations[0].Count != 3 {
		t.Errorf("three orders without lines: %+v, %v", report, err)
	}
}

// fill stores n orders that are reserved.
func fill(t *testing.T, s *system.System, n int) {
	t.Helper()
	for db, statements := range map[check.Querier][]string{
		s.OrderDB: {
			`insert into orders (order_id, event_id, customer_id, amount, currency, items, status, created_at, updated_at)
			 select 'ORD-' || n, 'event-' || n, 'C', 1, 'EUR', '[{"sku":"SKU-1","quantity":1}]', 'reserved', now(), now() from generate_series(1, $1) n`,
			`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, status, published_at)
			 select 'event-' || n, 'ORD-' || n, 1, 'order.created', '{}', now(), 'Published', now() from generate_series(1, $1) n`,
			`insert into inbox_messages (consumer_name, event_id) select 'c', 'answer-' || n from generate_series(1, $1) n`,
			`insert into order_answers (event_id, order_id, event_type, effect, order_status)
			 select 'answer-' || n, 'ORD-' || n, 'inventory.reserved', 'applied', 'created' from generate_series(1, $1) n`,
		},
		s.InventoryDB: {
			`insert into inventory_orders (order_id, state, event_id) select 'ORD-' || n, 'reserved', 'event-' || n from generate_series(1, $1) n`,
			`insert into inventory_reservations (order_id, sku, quantity, status, event_id)
			 select 'ORD-' || n, 'SKU-1', 1, 'reserved', 'event-' || n from generate_series(1, $1) n`,
			`update stock set reserved = $1 where sku = 'SKU-1'`,
			`insert into inbox_messages (consumer_name, event_id) select 'c', 'event-' || n from generate_series(1, $1) n`,
			`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, status, published_at)
			 select 'answer-' || n, 'ORD-' || n, 1, 'inventory.reserved', '{}', now(), 'Published', now() from generate_series(1, $1) n`,
		},
	} {
		for _, sql := range statements {
			execute(t, db, sql, n)
		}
	}
}

func execute(t *testing.T, db check.Querier, sql string, args ...any) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), sql, args...)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// What was pruned is not missed.
func TestRetention(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	s.Start()
	orders := s.Place(4)
	s.Cancel(orders[0])
	s.Settled()
	const age = ` - interval '8 days'`
	execute(t, s.OrderDB, `update orders set created_at = created_at`+age+`, updated_at = updated_at`+age)
	execute(t, s.InventoryDB, `update inventory_orders set created_at = created_at`+age+`, updated_at = updated_at`+age)
	execute(t, s.OrderDB, `delete from outbox_messages`)
	execute(t, s.InventoryDB, `delete from outbox_messages`)
	run := func(keep time.Duration) check.Report {
		report, err := check.Run(context.Background(), s.Sources(), check.Options{Quiet: true, OutboxKeep: keep})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	// The ids in the inboxes are as young as they are: they say when they were made.
	if report := run(time.Nanosecond); !report.OK || report.Orders != 4 {
		t.Errorf("with everything pruned: %+v", report)
	}
	if report := run(9 * 24 * time.Hour); len(report.Violations) < 3 {
		t.Errorf("if nothing should be: %+v", report)
	}
}

// What is pruned at its sender may still wait for its receiver, and is lost when
// it does not wait anywhere.
func TestPrunedWhileWaiting(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order, inventory := s.Start()
	answered := s.Place(1)[0]
	s.Settled()
	inventory.Stop()
	waiting := s.Place(2)
	testenv.Eventually(t, time.Minute, "the events are sent", func() error {
		depth, err := testenv.QueueDepth(s.Vhost, system.InventoryQueue)
		return errors.Join(err, testenv.Want(depth, len(waiting)))
	})
	order.Stop()
	// As if the answer to the first order were the message that waits for orders.
	execute(t, s.OrderDB, `update orders set status = 'created' where order_id = $1`, answered.OrderID)
	s.Publish("order.return", system.OrderQueue, amqp.Publishing{Body: []byte("{")})
	testenv.Eventually(t, time.Minute, "a message waits for orders", func() error {
		depth, err := testenv.QueueDepth(s.Vhost, system.OrderQueue)
		return errors.Join(err, testenv.Want(depth, 1))
	})
	execute(t, s.OrderDB, `delete from order_answers`)
	execute(t, s.OrderDB, `delete from inbox_messages`)
	execute(t, s.OrderDB, `delete from outbox_messages`)
	execute(t, s.InventoryDB, `delete from outbox_messages`)

	run := func() (report check.Report, rules []string) {
		report, err := check.Run(t.Context(), s.Sources(), check.Options{OutboxKeep: time.Nanosecond})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range report.Violations {
			rules = append(rules, v.Rule)
		}
		return report, rules
	}
	if report, rules := run(); len(rules) > 0 || report.InFlight != len(waiting) {
		t.Errorf("while they wait: %d in flight, %+v", report.InFlight, report.Violations)
	}
	ch := testenv.Channel(t, s.Vhost)
	for _, queue := range []string{system.InventoryQueue, system.OrderQueue} {
		if _, err := ch.QueuePurge(queue, false); err != nil {
			t.Fatal(err)
		}
	}
	// What the management API says of a queue may be a moment old.
	testenv.Eventually(t, time.Minute, "the loss is seen", func() error {
		report, rules := run()
		if !slices.Equal(rules, []string{"accounting", "event-lost", "status-disagrees"}) || report.InFlight != 0 {
			return fmt.Errorf("when they are gone: %d in flight, %+v", report.InFlight, report.Violations)
		}
		return nil
	})
}

// A user who may look at counts and not into queues sees less, and is told so.
func TestCountsOnly(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	s.Start()
	orders := s.Place(3)
	s.Publish("inventory.dlx", system.InventoryQueue, amqp.Publishing{MessageId: orders[0].EventID, Body: []byte("{")})
	s.Settled()
	execute(t, s.InventoryDB, `delete from inbox_messages where event_id = $1`, orders[0].EventID)
	src := s.Sources()
	audit := testenv.VhostUser(t, s.Vhost, provision.AuditUser)
	broker, err := check.NewBroker(testenv.Shared(t).ManagementURL(t, audit), vhost(t, s))
	if err != nil {
		t.Fatal(err)
	}
	broker.Lag = 2 * time.Second
	src.Broker = broker
	testenv.Eventually(t, time.Minute, "the count of dead letters", func() error {
		report, err := check.Run(t.Context(), src, check.Options{})
		if err != nil {
			return err
		}
		if !strings.HasPrefix(report.Broker, "counted only") || len(report.Violations) != 1 || report.Violations[0].Rule != "work-without-inbox" {
			return fmt.Errorf("got %+v, want that the dead letter may be the missing event", report)
		}
		return testenv.Want(report.Messages.DeadLetters, 1)
	})

	for _, wrong := range []struct{ url, vhost, want string }{
		{s.ManagementURL, "nosuch", `no vhost "nosuch"`},
		{strings.Replace(s.ManagementURL, "://", "://x", 1), vhost(t, s), "401"},
		{"http://a:b@127.0.0.1:1", vhost(t, s), "refused"},
	} {
		src.Broker, err = check.NewBroker(wrong.url, wrong.vhost)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := check.Run(t.Context(), src, check.Options{}); err == nil || !strings.Contains(err.Error(), wrong.want) {
			t.Errorf("%s: %v", wrong.want, err)
		}
	}
}

func vhost(t *testing.T, s *system.System) string {
	t.Helper()
	uri, err := amqp.ParseURI(s.Vhost)
	if err != nil {
		t.Fatal(err)
	}
	return uri.Vhost
}
