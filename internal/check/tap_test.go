package check_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/check"
	"example.com/baton/internal/provision"
	"example.com/baton/internal/servers"
	"example.com/baton/internal/testenv"
)

// A tap counts what is published and delivered, makes nothing routable, and goes
// on counting when the broker was restarted: from the start of a node that
// traces by its configuration, else from the next look on.
func TestTap(t *testing.T) {
	t.Parallel()
	for name, traced := range map[string]bool{"traced": true, "not traced": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testenv.OwnConfig(t)
			cfg.Traced = traced
			broker, err := servers.NewBroker(cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := broker.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			})
			if err := broker.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			url := broker.AdminURL("/")
			tap, err := check.StartTap(t.Context(), url, broker.ManagementURL())
			if err != nil {
				t.Fatal(err)
			}
			makeQueue(t, url)

			publish(t, url, "", "q", "one", true)
			publish(t, url, "", "q", "one", true)
			publish(t, url, "x", "k", "nowhere", false)
			take(t, url, "q", 2)
			publish(t, url, "", "q.dlq", "dead", true)
			take(t, url, "q.dlq", 1)
			wantCounts(t, tap, map[string]int{"one": 2, "nowhere": 1, "dead": 1}, map[string]int{"one": 2})

			if err := broker.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := tracing(t, broker); got != traced {
				t.Errorf("after the restart tracing is on: %t", got)
			}
			// A restarted tap queue has no leader for a moment, and nobody waits for it.
			testenv.Eventually(t, time.Minute, "counting goes on", func() error {
				copies, _, err := tap.Read(t.Context())
				if err != nil {
					return err
				}
				publish(t, url, "", "q", "two", true)
				return testenv.Want(copies["two"] > 0 && copies["one"] == 2, true)
			})

			if err := tap.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := testenv.QueueDepth(url, "baton.tap"); err == nil {
				t.Error("the tap's queue is left")
			}
		})
	}
}

func tracing(t *testing.T, broker *servers.Broker) bool {
	t.Helper()
	api, err := provision.NewManagement(broker.ManagementURL())
	if err != nil {
		t.Fatal(err)
	}
	var vhost struct{ Tracing bool }
	if err := api.Do(t.Context(), http.MethodGet, provision.Path("vhosts", "/"), nil, &vhost); err != nil {
		t.Fatal(err)
	}
	return vhost.Tracing
}

func makeQueue(t *testing.T, url string) {
	t.Helper()
	ch := testenv.Channel(t, url)
	for _, name := range []string{"q", "q.dlq"} {
		if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.ExchangeDeclare("x", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
}

// publish publishes and waits for the confirm; a message that goes nowhere is
// returned, whether a tap is there or not.
func publish(t *testing.T, url, exchange, key, id string, routed bool) {
	t.Helper()
	ch := testenv.Channel(t, url)
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	msg := amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent}
	confirm, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), exchange, key, true, false, msg)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := confirm.WaitContext(t.Context()); err != nil || !ok {
		t.Fatalf("publish %s: confirmed %t, %v", id, ok, err)
	}
	select {
	case <-returns:
		if routed {
			t.Errorf("%s was returned", id)
		}
	default:
		if !routed {
			t.Errorf("%s was not returned", id)
		}
	}
}

func take(t *testing.T, url, queue string, n int) {
	t.Helper()
	ch := testenv.Channel(t, url)
	for range n {
		if _, ok, err := ch.Get(queue, true); err != nil || !ok {
			t.Fatalf("get from %s: %t, %v", queue, ok, err)
		}
	}
}

// wantCounts reads the tap until it has these counts.
func wantCounts(t *testing.T, tap *check.Tap, copies, deliveries map[string]int) {
	t.Helper()
	testenv.Eventually(t, time.Minute, "the tap has counted", func() error {
		gotCopies, gotDeliveries, err := tap.Read(t.Context())
		if err != nil {
			return err
		}
		if diff := cmp.Diff(copies, gotCopies) + cmp.Diff(deliveries, gotDeliveries); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}
