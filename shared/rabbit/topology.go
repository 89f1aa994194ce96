package rabbit

import (
	"cmp"
	"context"
	"errors"
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

	// Set by Split and Leftover.
	of       string // the name that the queues of a subscription have in common, which is that of the first
	leftover bool
}

// Split returns n queues that share the subscription, for a consumer each. The
// first has the name of q, the others add ".2", ".3" and so on; each has a retry
// queue of its own, all have one final queue. With n > 1 an x-consistent-hash
// exchange, also of the name of q, stands between the source and the queues: it
// goes by correlation_id, where [Publisher] puts the aggregate's id, so that the
// events of an order are in one queue. The broker needs the plugin
// rabbitmq_consistent_hash_exchange for it.
//
// No process takes anything from the first queue that another may count on: it
// stays in the hash for ever, and the hash on the source. So processes with
// different n, as there are when it is changed, make copies and lose nothing.
func (q Queue) Split(n int) []Queue {
	if n <= 1 {
		return []Queue{q}
	}
	queues := make([]Queue, n)
	for i := range queues {
		queues[i] = q.part(i + 1)
	}
	return queues
}

func (q Queue) part(number int) Queue {
	q.of = q.Name
	if number > 1 {
		q.Name = fmt.Sprintf("%s.%d", q.of, number)
	}
	return q
}

// Leftover is the queue with this number when [Queue.Split] makes fewer. Its
// consumer takes it out of the hash and reads what is in it; it does not make
// it, and Run returns when it is not there or somebody deletes it.
func (q Queue) Leftover(number int) Queue {
	q = q.part(number)
	q.leftover = true
	return q
}

// Unwanted returns what reports whether a binding of a queue is left from a
// Split into another number: [Audit.Unwanted].
func (q Queue) Unwanted(n int) func(Binding) bool {
	names := make(map[string]bool, n)
	for _, part := range q.Split(n) {
		names[part.Name] = true
	}
	return func(b Binding) bool {
		return b.Exchange == q.Name && !names[b.Queue] || n > 1 && b.Exchange == q.Source && b.Queue == q.Name
	}
}

// RetryName is the name of the queue in which failed messages wait.
func (q Queue) RetryName() string { return q.Name + ".retry" }

// DeadName is the name of the final dead-letter queue.
func (q Queue) DeadName() string { return q.deadKey() + ".dlq" }

func (q Queue) retryExchange() string  { return q.Owner + ".retry" }
func (q Queue) returnExchange() string { return q.Owner + ".return" }
func (q Queue) deadExchange() string   { return q.Owner + ".dlx" }
func (q Queue) deadKey() string        { return cmp.Or(q.of, q.Name) }

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
	if q.leftover {
		return q.declareLeftover(ch)
	}
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
	if q.of != "" {
		err := ch.ExchangeDeclare(q.of, "x-consistent-hash", true, false, false, false, amqp.Table{"hash-property": "correlation_id"})
		if err != nil {
			return fmt.Errorf("declare exchange %s: %w", q.of, err)
		}
	}
	for _, b := range q.Bindings() {
		bind := ch.QueueBind
		if q.of != "" && b.Exchange == q.Source {
			bind = ch.ExchangeBind
		}
		if err := bind(b.Queue, b.Key, b.Exchange, false, nil); err != nil {
			return fmt.Errorf("bind %s to %s with %s: %w", b.Queue, b.Exchange, b.Key, err)
		}
	}
	if q.of == "" {
		return nil
	}
	// What a queue alone was bound with. The hash is there by now.
	for _, key := range q.Keys {
		if err := ch.QueueUnbind(q.of, key, q.Source, nil); err != nil {
			return fmt.Errorf("unbind %s from %s with %s: %w", q.of, q.Source, key, err)
		}
	}
	return nil
}

func (q Queue) declareLeftover(ch *amqp.Channel) error {
	if _, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil); err != nil {
		return fmt.Errorf("look for queue %s: %w", q.Name, err)
	}
	if err := ch.QueueUnbind(q.Name, hashWeight, q.of, nil); err != nil {
		return fmt.Errorf("unbind %s from %s: %w", q.Name, q.of, err)
	}
	return nil
}

// Exists asks the broker whether the queue is there, and asks again until it
// answers. It returns false when ctx is done.
func (q Queue) Exists(ctx context.Context, brokerURL string) bool {
	for ctx.Err() == nil {
		opening, cancel := context.WithTimeout(ctx, openTimeout)
		s, err := dial(opening, brokerURL, q.Name+" look", nil)
		if err == nil {
			_, err = s.ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
			s.close()
		}
		cancel()
		if err == nil || isMissing(err) {
			return err == nil
		}
		pause(ctx, redialCap)
	}
	return false
}

func isMissing(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.NotFound
}

// hashWeight is the share of a queue in the hash: the same for all.
const hashWeight = "1"

// Binding is one binding that must exist. Messages for a missing one are lost to
// its queue without a sign as long as any other queue takes them. Queue may be
// the hash exchange that stands for the queue of the same name; see
// [Queue.Split].
type Binding struct{ Exchange, Queue, Key string }

func (b Binding) String() string { return fmt.Sprintf("%s → %s (%s)", b.Exchange, b.Queue, b.Key) }

// Bindings are all that the subscription needs. The source's come last: its
// exchange may not be there yet.
func (q Queue) Bindings() []Binding {
	all := []Binding{
		{q.retryExchange(), q.RetryName(), q.Name},
		{q.returnExchange(), q.Name, q.Name},
		{q.deadExchange(), q.DeadName(), q.deadKey()},
	}
	if q.of != "" {
		all = append(all, Binding{q.of, q.Name, hashWeight})
	}
	for _, key := range q.Keys {
		all = append(all, Binding{q.Source, cmp.Or(q.of, q.Name), key})
	}
	return all
}
