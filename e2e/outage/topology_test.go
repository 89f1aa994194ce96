package outage

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/proxy"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// The exchange of the orders' events is deleted, and with it every binding to
// it. Publishing to nowhere is no success; the owners make both anew. (B24)
func TestExchangeDeleted(t *testing.T) {
	t.Parallel()
	w := begin(t, setup{})
	w.under(func() {
		pause(t, 2*time.Second)
		w.breakUntilMissed(func() error {
			return w.Broker.Do(t.Context(), http.MethodDelete, "/exchanges/{vhost}/"+events.OrderExchange, nil, nil)
		}, 2, events.OrderExchange)
		pause(t, lasts(2*time.Second, 20*time.Second))
	})
	w.recovered()
	if !slices.ContainsFunc(w.orders, func(p *system.Process) bool { return logged(p, "NOT_FOUND - no exchange 'orders.events'") }) {
		t.Error("no log of an order process names the 404 of the missing exchange")
	}
	wantNobodyBlamed(t, w)
}

// A binding is deleted, each in its turn. What is sent meanwhile comes back as
// unroutable and waits; the audit sees what is missing and its owner binds it
// again.
func TestBindingDeleted(t *testing.T) {
	t.Parallel()
	for _, binding := range []struct{ exchange, queue, key string }{
		{events.OrderExchange, system.InventoryQueue, events.OrderCreated},
		{events.InventoryExchange, system.OrderQueue, events.InventoryReserved},
	} {
		t.Run(binding.key, func(t *testing.T) {
			t.Parallel()
			w := begin(t, setup{})
			// With another queue bound the broker is content, and so would we be.
			w.unbindTap()
			w.under(func() {
				pause(t, time.Second)
				w.breakUntilMissed(func() error {
					return w.Broker.DeleteBinding(t.Context(), binding.exchange, binding.queue, binding.key)
				}, 1, binding.exchange, binding.queue, binding.key)
			})
			w.recovered()
			if w.sum(`baton_relay_outcomes_total{outcome="unroutable"}`, w.all()...) == 0 {
				t.Error("nothing was unroutable: the binding was deleted in vain")
			}
			wantNobodyBlamed(t, w)
		})
	}
}

// breakUntilMissed breaks bindings until a process counts n of them as missing,
// and says so in these words. As a rule that is at once. But they are there again
// a moment after they were missed, and on a busy machine we may look too late.
func (w *world) breakUntilMissed(breakThem func() error, n float64, words ...string) {
	w.t.Helper()
	if err := breakThem(); err != nil {
		w.t.Fatal(err)
	}
	testenv.Eventually(w.t, 30*time.Second, "somebody misses bindings", func() error {
		var errs []error
		for _, p := range w.all() {
			got, err := p.ReadMetric("baton_bindings_missing")
			if err == nil {
				err = testenv.Want(got, n)
			}
			if err == nil {
				var r readiness
				if r, err = ready(p); err == nil {
					err = r.says(words...)
				}
			}
			if err == nil {
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", p.Name, err))
		}
		_ = breakThem() // it fails where they are not there at the moment
		return errors.Join(errs...)
	})
}

func (w *world) unbindTap() {
	w.t.Helper()
	ch := testenv.Channel(w.t, w.Vhost)
	if _, err := ch.QueueDelete("tap", false, false, false); err != nil {
		w.t.Fatal(err)
	}
}

// The queue is deleted under its consumer, which says so, does not spin, and has
// it again. (B38)
func TestQueueDeleted(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	_, inventory := s.Start()
	s.Place(5)
	s.Settled()
	cpu, lines := inventory.Metric("process_cpu_seconds_total"), len(records(inventory))
	stop := watch(t, inventory)
	if _, err := testenv.Channel(t, s.Vhost).QueueDelete(system.InventoryQueue, false, false, false); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "the consumer says so", func() error {
		if !logged(inventory, "the broker cancelled the consumer") {
			return errors.New("not logged")
		}
		return nil
	})
	pause(t, lasts(5*time.Second, 30*time.Second))
	eventuallyReady(t, 20*time.Second, inventory, http.StatusOK, "ok")
	ready := 0
	for _, r := range stop() {
		if r.code == http.StatusOK {
			ready++
		}
	}
	if ready == 0 {
		t.Error("never ready again")
	}
	if n := len(records(inventory)) - lines; n > 6 {
		t.Errorf("%d lines were logged about it", n)
	}
	if used := inventory.Metric("process_cpu_seconds_total") - cpu; used > lasts(5*time.Second, 30*time.Second).Seconds()/3 {
		t.Errorf("it took %.1f s of CPU", used)
	}
	s.Place(5)
	s.Settled()
	s.Exact()
}

// Somebody has made a queue by hand, with other arguments than ours. The service
// says which and does nothing until that is mended; orders are taken, and nothing
// is lost. (B54, B55)
func TestQueueWithOtherArguments(t *testing.T) {
	t.Parallel()
	// What the services declare, so that each case differs in one argument.
	ours := func(deadLetterExchange string, more amqp.Table) amqp.Table {
		args := amqp.Table{
			"x-queue-type": "quorum", "x-delivery-limit": int32(100_000),
			"x-dead-letter-exchange": deadLetterExchange, "x-dead-letter-routing-key": system.InventoryQueue,
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		}
		maps.Copy(args, more)
		return args
	}
	for name, tt := range map[string]struct {
		queue string
		args  amqp.Table
		lost  bool     // it ends with the broker
		says  []string // argument, what we want, what there is
		env   string
	}{
		"length": {
			queue: system.InventoryQueue,
			args:  ours("inventory.retry", amqp.Table{"x-max-length": int32(10)}),
			says:  []string{"x-max-length", "none", "10"},
		},
		"type": { // the broker names the first difference, and this is to be the only one
			queue: system.InventoryQueue,
			args:  amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "inventory.retry", "x-dead-letter-routing-key": system.InventoryQueue},
			says:  []string{"x-queue-type", "classic", "quorum"},
			env:   "QUEUE_TYPE=classic",
		},
		"not durable": {
			queue: system.InventoryQueue, lost: true,
			args: amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "inventory.retry", "x-dead-letter-routing-key": system.InventoryQueue},
			says: []string{"durable", "true", "false"},
			env:  "QUEUE_TYPE=classic",
		},
		"ttl": {
			queue: system.InventoryQueue + ".retry",
			args:  ours("inventory.return", amqp.Table{"x-message-ttl": int64(5000)}),
			says:  []string{"x-message-ttl", "300", "5000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{})
			// By the management API: some brokers have no queue that is not durable, and
			// say so there without closing a channel.
			queue := map[string]any{"durable": !tt.lost, "auto_delete": false, "arguments": tt.args}
			err := s.Broker.Do(t.Context(), http.MethodPut, "/queues/{vhost}/"+tt.queue, queue, nil)
			switch {
			case err != nil && tt.lost && strings.Contains(err.Error(), "transient_nonexcl_queues"):
				return // RabbitMQ 4.3 refuses to make such a queue, so none can be in the way
			case err != nil:
				t.Fatal(err)
			}
			s.StartOrder()
			via, through := testenv.Proxy(t, testenv.VhostUser(t, s.Vhost, provision.InventoryUser))
			inventory := s.InventoryProcess(tt.env, "INVENTORY_AMQP_URL="+through)
			inventory.Launch()
			eventuallyReady(t, 20*time.Second, inventory, http.StatusServiceUnavailable, "unavailable",
				append(tt.says, tt.queue, "PRECONDITION_FAILED", "drain and delete it")...)
			wantCalm(t, inventory, via)
			s.Place(20)

			// As the answer says. The service sees by itself that it is gone.
			if _, err := testenv.Channel(t, s.Vhost).QueueDelete(tt.queue, false, false, false); err != nil {
				t.Fatal(err)
			}
			eventuallyReady(t, 20*time.Second, inventory, http.StatusOK, "ok")
			s.Settled()
			s.Exact()
		})
	}
}

// A queue that somebody made as we would have is as good as ours. (B55)
func TestQueueMadeByHand(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp.Table{
		"type given":     {"x-queue-type": "classic", "x-dead-letter-exchange": "inventory.retry", "x-dead-letter-routing-key": system.InventoryQueue},
		"type not given": {"x-dead-letter-exchange": "inventory.retry", "x-dead-letter-routing-key": system.InventoryQueue},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{Env: []string{"QUEUE_TYPE=classic"}})
			if _, err := testenv.Channel(t, s.Vhost).QueueDeclare(system.InventoryQueue, true, false, false, false, args); err != nil {
				t.Fatal(err)
			}
			s.Start()
			s.Place(20)
			s.Settled()
			s.Exact()
		})
	}
}

// wantCalm watches a service that cannot do what it would, and fails the test if
// it is noisy or in a hurry about it.
func wantCalm(t *testing.T, p *system.Process, via *proxy.Proxy) {
	t.Helper()
	lines, connections := len(records(p)), via.Accepted()
	const while = 6 * time.Second
	pause(t, while)
	if n := len(records(p)) - lines; n > 3 {
		t.Errorf("%s has logged %d lines in %s while nothing changed", p.Name, n, while)
	}
	if n := via.Accepted() - connections; n > 6 {
		t.Errorf("%s has made %d connections in %s to a broker that cannot be used", p.Name, n, while)
	}
}
