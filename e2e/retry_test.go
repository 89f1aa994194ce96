package e2e

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// services are both sides of the flow by what they consume.
var services = []struct {
	name, queue, exchange, key string
}{
	{"inventory", system.InventoryQueue, events.OrderExchange, events.OrderCreated},
	{"order", system.OrderQueue, events.InventoryExchange, events.InventoryReserved},
}

// TestCrashAtRetry kills a consumer when a batch has failed and the broker does
// not know that it is to be tried again later.
func TestCrashAtRetry(t *testing.T) {
	t.Parallel()
	for _, service := range services {
		t.Run(service.name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{})
			order, inventory := s.Start()
			victim := inventory
			if service.name == "order" {
				victim = order
			}
			victim.Arm(faults.Fault{Step: "consumer.received", Action: faults.Error, After: 3})
			victim.Arm(faults.Fault{Step: "consumer.retrying", Action: faults.Crash})
			load := s.Load(100)
			victim.WaitCrash("consumer.retrying")
			victim.Restart()
			load.Stop()
			s.Settled()
			s.Exact()
		})
	}
}

// TestCrashWhileMessagesWait kills a consumer after it has sent a batch round
// the retry queue, where the batch waits for the next life.
func TestCrashWhileMessagesWait(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{RetryTTL: 2 * time.Second})
	_, inventory := s.Start()
	inventory.Arm(faults.Fault{Step: "consumer.received", Action: faults.Error, After: 3})
	load := s.Load(100)
	testenv.Eventually(t, 30*time.Second, "a failed batch", func() error {
		return testenv.Want(inventory.Metric("baton_consumer_retried_total") > 0, true)
	})
	inventory.Kill()
	inventory.Restart()
	load.Stop()
	s.Settled()
	s.Exact()
}

// TestCrashAtDeadLetter kills a consumer when a message that nobody can read is
// in the final queue and not yet acknowledged. It arrives there again, and it is
// never lost. (B50)
func TestCrashAtDeadLetter(t *testing.T) {
	t.Parallel()
	for _, service := range services {
		t.Run(service.name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{})
			order, inventory := s.Start()
			victim := inventory
			if service.name == "order" {
				victim = order
			}
			victim.Arm(faults.Fault{Step: "consumer.dead-lettered", Action: faults.Crash})
			load := s.Load(100)
			s.Publish(service.exchange, service.key, amqp.Publishing{MessageId: "unreadable", Type: service.key, Body: []byte("{")})
			if inHand := victim.WaitCrash("consumer.dead-lettered"); inHand[0] != "unreadable" {
				t.Errorf("died with %v in hand, want the unreadable message", inHand)
			}
			if n := len(s.Dead(service.queue)); n != 1 {
				t.Errorf("%d messages are in the final queue at the crash, want the one", n)
			}
			victim.Restart()
			load.Stop()
			s.Settled()
			s.Exact("unreadable")
			dead := s.Dead(service.queue)
			if len(dead) != 2 {
				t.Errorf("%d messages are in the final queue, want the one and its copy", len(dead))
			}
			for _, d := range dead {
				if d.MessageId != "unreadable" || string(d.Body) != "{" {
					t.Errorf("message %s with body %q is in the final queue", d.MessageId, d.Body)
				}
			}
		})
	}
}
