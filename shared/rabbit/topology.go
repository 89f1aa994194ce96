package rabbit

import (
	"cmp"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Queue is a subscription: a queue bound to an exchange of somebody else, with
// the retry queue, the way back and the final dead-letter queue that belong to
// it. It is the one place that knows their names and arguments.
type Queue struct {
	Name   string   // "inventory.order-events"
	Owner  string   // "inventory": prefix of its three exchanges
	Source string   // "orders.events": the exchange it subscribes to, declared by its owner
	Keys   []string // routing keys, each bound by name
	// Type is "quorum" or "classic". Defaults to "quorum". A classic queue loses
	// what its node loses, dead-letters at most once, and does not count
	// deliveries.
	Type string
	// RetryTTL is how long a failed message waits. Defaults to 2 seconds. It is
	// a queue argument: to change it, delete the retry queue when it is empty.
	RetryTTL time.Duration
	// Retries is how often a message is tried again after its first failure.
	// Defaults to 3, which makes 4 deliveries. Negative means none.
	Retries int
}

// RetryName, DeadName are the names of the queues in which messages wait and end.
func (q Queue) RetryName() string { return q.Name + ".retry" }

// DeadName is the name of the final dead-letter queue.
func (q Queue) DeadName() string { return q.Name + ".dlq" }

func (q Queue) retryExchange() string  { return q.Owner + ".retry" }
func (q Queue) returnExchange() string { return q.Owner + ".return" }
func (q Queue) deadExchange() string   { return q.Owner + ".dlx" }

func (q Queue) retries() int { return max(cmp.Or(q.Retries, 3), 0) }

// deliveryLimit is out of reach on purpose. The default of 20 on RabbitMQ 4
// dead-letters every held message after 21 lost connections, and deletes from a
// dead-letter queue that people only look at. Negative limits are worse: 3.10
// deletes at the first redelivery.
const deliveryLimit = 100_000

// args are the arguments of a queue that dead-letters to exchange. Without one
// it is the final queue, which keeps everything.
func (q Queue) args(exchange string) amqp.Table {
	t := amqp.Table{"x-queue-type": cmp.Or(q.Type, "quorum")}
	quorum := t["x-queue-type"] == "quorum"
	if quorum {
		t["x-delivery-limit"] = int32(deliveryLimit)
	}
	if exchange != "" {
		t["x-dead-letter-exchange"] = exchange
		// The queue's own name brings a message back to this queue and no other.
		t["x-dead-letter-routing-key"] = q.Name
		if quorum {
			// At-least-once dead-lettering keeps a message until its next queue has
			// confirmed it. It needs reject-publish, and there is no limit to reject at.
			t["x-dead-letter-strategy"] = "at-least-once"
			t["x-overflow"] = "reject-publish"
		}
	}
	return t
}

// declare makes everything the subscription owns. It is idempotent; a queue that
// exists with other arguments is a 406 that closes the channel, a missing source
// exchange a 404.
func (q Queue) declare(ch *amqp.Channel) error {
	for _, name := range []string{q.retryExchange(), q.returnExchange(), q.deadExchange()} {
		if err := ch.ExchangeDeclare(name, amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
			return fmt.Errorf("declare exchange %s: %w", name, err)
		}
	}
	retry := q.args(q.returnExchange())
	retry["x-message-ttl"] = int64(cmp.Or(q.RetryTTL, 2*time.Second) / time.Millisecond)
	for _, queue := range []struct {
		name string
		args amqp.Table
	}{
		{q.Name, q.args(q.retryExchange())},
		{q.RetryName(), retry},
		{q.DeadName(), q.args("")},
	} {
		if _, err := ch.QueueDeclare(queue.name, true, false, false, false, queue.args); err != nil {
			return fmt.Errorf("declare queue %s: %w", queue.name, err)
		}
	}
	for _, b := range q.Bindings() {
		if err := ch.QueueBind(b.Queue, b.Key, b.Exchange, false, nil); err != nil {
			return fmt.Errorf("bind queue %s to %s with %s: %w", b.Queue, b.Exchange, b.Key, err)
		}
	}
	return nil
}

// Binding is one binding that must exist. Messages for a missing one are lost to
// its queue without a sign as long as any other queue takes them.
type Binding struct{ Exchange, Queue, Key string }

func (b Binding) String() string { return fmt.Sprintf("%s → %s (%s)", b.Exchange, b.Queue, b.Key) }

// Bindings are all that the subscription needs. The source's come last: its
// exchange may not be there yet.
func (q Queue) Bindings() []Binding {
	all := []Binding{
		{q.retryExchange(), q.RetryName(), q.Name},
		{q.returnExchange(), q.Name, q.Name},
		{q.deadExchange(), q.DeadName(), q.Name},
	}
	for _, key := range q.Keys {
		all = append(all, Binding{q.Source, q.Name, key})
	}
	return all
}
