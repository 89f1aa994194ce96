package outage

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/provision"
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
		"ttl": {
			queue: system.InventoryQueue + ".retry",
			args:  ours("inventory.return", amqp.Table{"x-message-ttl": int64(5000)}),
			says:  []string{"x-message-ttl", "300", "5000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{})
			if _, err := testenv.Channel(t, s.Vhost).QueueDeclare(tt.queue, true, false, false, false, tt.args); err != nil {
				t.Fatal(err)
			}
			s.StartOrder()
			proxy := newCountingProxy(t, s.Vhost)
			inventory := s.InventoryProcess(tt.env, "INVENTORY_AMQP_URL="+proxy.through(t, testenv.VhostUser(t, s.Vhost, provision.InventoryUser)))
			inventory.Launch()
			eventuallyReady(t, 20*time.Second, inventory, http.StatusServiceUnavailable, "unavailable",
				append(tt.says, tt.queue, "PRECONDITION_FAILED", "drain and delete it")...)
			wantCalm(t, inventory, proxy)
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

// wantCalm watches a service that cannot do what it would, and fails the test if
// it is noisy or in a hurry about it.
func wantCalm(t *testing.T, p *system.Process, proxy *countingProxy) {
	t.Helper()
	lines, connections := len(records(p)), proxy.count.Load()
	const while = 6 * time.Second
	pause(t, while)
	if n := len(records(p)) - lines; n > 3 {
		t.Errorf("%s has logged %d lines in %s while nothing changed", p.Name, n, while)
	}
	if n := proxy.count.Load() - connections; n > 6 {
		t.Errorf("%s has made %d connections in %s to a broker that cannot be used", p.Name, n, while)
	}
}
