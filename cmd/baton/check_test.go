package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/testenv"
	inventorymigrations "example.com/baton/migrations/inventory"
	ordermigrations "example.com/baton/migrations/order"
)

// checked is a system in which three orders were handled, one of them refused,
// and a fourth is dead-lettered.
func checked(t *testing.T) (flags []string, orders, reservations *pgxpool.Pool) {
	t.Helper()
	order, inventory, vhost := testenv.Migrated(t, ordermigrations.FS), testenv.Migrated(t, inventorymigrations.FS), testenv.Vhost(t)
	orders, reservations = testenv.Pool(t, order.Admin), testenv.Pool(t, inventory.Admin)
	for db, statements := range map[*pgxpool.Pool][]string{
		orders: {
			`insert into orders (order_id, event_id, customer_id, amount, currency, items, status, reason, created_at, updated_at)
			 values ('ORD-1', 'event-1', 'C', 1, 'EUR', '[{"sku":"SKU-1","quantity":2}]', 'reserved', null, now(), now()),
			        ('ORD-2', 'event-2', 'C', 1, 'EUR', '[{"sku":"SKU-1","quantity":3}]', 'reserved', null, now(), now()),
			        ('ORD-3', 'event-3', 'C', 1, 'EUR', '[{"sku":"SKU-RARE","quantity":11}]', 'rejected', 'out of stock: SKU-RARE', now(), now()),
			        ('ORD-4', 'event-4', 'C', 1, 'EUR', '[{"sku":"SKU-1","quantity":1}]', 'created', null, now(), now())`,
			`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, status, published_at)
			 select event_id, order_id, 1, 'order.created', '{}', now(), 'Published', now() from orders`,
			`insert into order_answers (event_id, order_id, event_type, effect, order_status)
			 select replace(event_id, 'event', 'answer'), order_id, 'inventory.' || status, 'applied', 'created' from orders where status <> 'created'`,
			`insert into inbox_messages (consumer_name, event_id) select 'order.inventory-events', event_id from order_answers`,
		},
		reservations: {
			`insert into inventory_orders (order_id, state, reason, event_id)
			 values ('ORD-1', 'reserved', null, 'event-1'), ('ORD-2', 'reserved', null, 'event-2'), ('ORD-3', 'rejected', 'out of stock: SKU-RARE', 'event-3')`,
			`insert into inventory_reservations (order_id, sku, quantity, status, event_id)
			 values ('ORD-1', 'SKU-1', 2, 'reserved', 'event-1'), ('ORD-2', 'SKU-1', 3, 'reserved', 'event-2')`,
			`update stock set reserved = 5 where sku = 'SKU-1'`,
			`insert into inbox_messages (consumer_name, event_id) select 'inventory.order-events', event_id from inventory_orders`,
			`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, status, published_at)
			 select replace(event_id, 'event', 'answer'), order_id, 1, 'inventory.' || state, '{}', now(), 'Published', now() from inventory_orders`,
		},
	} {
		for _, sql := range statements {
			if _, err := db.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	const dead = "inventory.order-events.dlq"
	ch := testenv.Channel(t, vhost)
	if _, err := ch.QueueDeclare(dead, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	msg := amqp.Publishing{MessageId: "event-4", Headers: amqp.Table{"x-baton-reason": "too old"}, DeliveryMode: amqp.Persistent}
	if err := ch.PublishWithContext(t.Context(), "", dead, true, false, msg); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "the dead letter", func() error {
		n, err := testenv.QueueDepth(vhost, dead)
		return errors.Join(err, testenv.Want(n, 1))
	})
	uri, err := amqp.ParseURI(vhost)
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		"check", "--order", order.Service, "--inventory", inventory.Service, "--amqp", vhost,
		"--management", testenv.Shared(t).ManagementURL(t, vhost), "--vhost", uri.Vhost,
	}, orders, reservations
}

func TestCheck(t *testing.T) {
	t.Parallel()
	flags, orders, reservations := checked(t)
	const sound = `  orders                  4
= reserved                2
+ rejected                1
+ released                0
+ cancelled first         0
+ dead                    1
+ failed                  0
+ in flight               0

messages: 0 not sent, 0 sent and not handled, 0 failed, 1 dead-lettered
broker: checked

ok: no rule is broken
`
	out, err := baton(t, flags...)
	if err != nil {
		t.Errorf("a sound system: %v", err)
	}
	if diff := cmp.Diff(sound, out); diff != "" {
		t.Errorf("the table of a sound system (-want +got):\n%s", diff)
	}
	out, err = baton(t, append(flags, "--json")...)
	const promised = `{"ok":true,"orders":4,"reserved":2,"rejected":1,"dead":1,"in_flight":0,"violations":[]`
	if err != nil || !strings.HasPrefix(out, promised) {
		t.Errorf("--json: %v\n%s, want it to begin with\n%s", err, out, promised)
	}

	if _, err := reservations.Exec(t.Context(), `delete from inventory_reservations where order_id = 'ORD-2'`); err != nil {
		t.Fatal(err)
	}
	out, err = baton(t, append(flags, "--json")...)
	var report struct {
		OK         bool
		Violations []struct {
			Rule    string
			OrderID []string `json:"order_ids"`
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Errorf("--json: %v\n%s", err, out)
	}
	var code exitCode
	if !errors.As(err, &code) || code != 1 || report.OK || len(report.Violations) != 2 || report.Violations[0].Rule != "line-twice" {
		t.Errorf("an order without lines: %v\n%s", err, out)
	}
	out, err = baton(t, flags...)
	for _, want := range []string{"line-twice, 1: ", "order ORD-2 is reserved and has the lines map[], want map[SKU-1:3]", "events event-2\n", "BROKEN: 2 of 24 rules\n"} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("an order without lines: %v\n%s, want %q", err, out, want)
		}
	}

	// One that nobody sends is on its way for ever.
	if _, err := orders.Exec(t.Context(), `update outbox_messages set status = 'Pending', published_at = null where event_id = 'event-1'`); err != nil {
		t.Fatal(err)
	}
	out, err = baton(t, append(flags, "--wait", "100ms")...)
	if want := "none of the 1 messages that were not sent at first has been sent since"; err == nil || !strings.Contains(out, want) {
		t.Errorf("a row that nobody sends: %v\n%s, want %q", err, out, want)
	}
	if out, err = baton(t, append(flags, "--wait", "0")...); err == nil || strings.Contains(out, "stuck") {
		t.Errorf("without waiting: %v\n%s, want nothing said of what is stuck", err, out)
	}
}

func TestCheckEvent(t *testing.T) {
	t.Parallel()
	flags, _, _ := checked(t)
	for _, id := range []string{"event-1", "answer-1", "ORD-1"} {
		out, err := baton(t, append(flags, "--event", id)...)
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
		last := 0
		for _, step := range []string{"order.accepted", "order.committed", "relay.settled", "inventory.reserved", "answer.published"} {
			at := strings.Index(out, step)
			if at < 0 {
				t.Errorf("%s: no step %s in\n%s", id, step, out)
			}
			last = max(last, at)
		}
		if !strings.HasPrefix(out, "order ORD-1\n") || !strings.Contains(out, "order      consumer.committed  answer-1") {
			t.Errorf("%s: %s", id, out)
		}
	}
	out, err := baton(t, append(flags, "--event", "event-4", "--json")...)
	var story story
	if err := errors.Join(err, json.Unmarshal([]byte(out), &story)); err != nil {
		t.Errorf("a dead one: %v\n%s", err, out)
	}
	if len(story.Dead) != 1 || story.Dead[0].Queue != "inventory.order-events.dlq" || story.Dead[0].Reason != "too old" || len(story.Steps) != 3 {
		t.Errorf("a dead one: %s", out)
	}
	if out, err = baton(t, append(flags, "--event", "nobody")...); err == nil {
		t.Errorf("an id that nobody knows: %s", out)
	}
}

// Where nothing runs the command says what to do, and half an answer is refused.
func TestCheckFindsServers(t *testing.T) {
	t.Parallel()
	if _, err := baton(t, "check", "--name", "nosuch"); err == nil || !strings.Contains(err.Error(), "docker compose run") {
		t.Errorf("nothing runs: %v", err)
	}
	if _, err := baton(t, "check", "--order", "postgres://127.0.0.1/orders"); err == nil || !strings.Contains(err.Error(), "INVENTORY_DATABASE_URL") {
		t.Errorf("one database: %v", err)
	}
	// A password never shows.
	for _, flag := range []string{"--management", "--amqp"} {
		const secret = "s%zzcret"
		_, err := baton(t, "check", "--order", "postgres://u:"+secret+"@127.0.0.1:1/o", "--inventory", "postgres://u:"+secret+"@127.0.0.1:1/i", flag, "x://u:"+secret+"@:::")
		if err == nil || strings.Contains(fmt.Sprint(err), "cret") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
