package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/provision"
)

// Tap counts what is published and delivered in a vhost, by the broker's own
// firehose: a copy of every message goes to the exchange amq.rabbitmq.trace and
// from there to a queue of the tap. Unlike a queue bound to the services'
// exchanges, it makes nothing routable that would not be without it.
//
// What was counted is never too much. It may be too little around a restart of
// the node: tracing is off then until the next [Tap.Read] turns it on again,
// unless the node has the vhost in trace_vhosts (Traced of servers.Config), and
// nobody waits for the copies to be confirmed, so that a node which is killed, or
// whose queue has no leader yet, loses some. What is in the tap's queue survives.
//
// Tracing costs every publish and delivery a message of its own.
type Tap struct {
	api        *provision.Management
	amqpURL    string
	vhost      string
	copies     map[string]map[string]int // by message id and exchange
	deliveries map[string]map[string]int // by message id and queue
}

// tapQueue is durable and replicated, so that no restart costs it anything.
const tapQueue = "baton.tap"

// StartTap starts counting in the vhost of an AMQP address, whose user must be
// an administrator at the management API too.
func StartTap(ctx context.Context, amqpURL, managementURL string) (*Tap, error) {
	uri, err := amqp.ParseURI(amqpURL)
	if err != nil {
		return nil, errors.New("the tap's AMQP address is no URL") // err would show the password
	}
	api, err := provision.NewManagement(managementURL)
	if err != nil {
		return nil, err
	}
	t := &Tap{
		api: api, amqpURL: amqpURL, vhost: uri.Vhost,
		copies: make(map[string]map[string]int), deliveries: make(map[string]map[string]int),
	}
	err = t.with(t.declare)
	if err != nil {
		return nil, fmt.Errorf("start the tap: %w", err)
	}
	return t, t.trace(ctx, true)
}

// declare makes the queue and its bindings, if they are not there: a node that is
// killed may forget what was made in the last moment.
func (t *Tap) declare(ch *amqp.Channel) error {
	args := amqp.Table{"x-queue-type": "quorum"}
	if _, err := ch.QueueDeclare(tapQueue, true, false, false, false, args); err != nil {
		return err
	}
	for _, key := range []string{"publish.#", "deliver.#"} {
		if err := ch.QueueBind(tapQueue, key, "amq.rabbitmq.trace", false, nil); err != nil {
			return err
		}
	}
	return nil
}

// trace turns tracing of the vhost on or off.
func (t *Tap) trace(ctx context.Context, on bool) error {
	path := provision.Path("vhosts", t.vhost)
	var now struct{ Tracing bool }
	if err := t.api.Do(ctx, http.MethodGet, path, nil, &now); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	if now.Tracing == on {
		return nil
	}
	if err := t.api.Do(ctx, http.MethodPut, path, map[string]bool{"tracing": on}, nil); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}

// Drain counts what has come in since the last call. It may fail while the broker
// is away, and goes on at the next call. Call it now and then: what it has not
// read yet is kept by the broker.
func (t *Tap) Drain(ctx context.Context) error {
	if err := t.trace(ctx, true); err != nil {
		return err
	}
	err := t.with(func(ch *amqp.Channel) error {
		if err := t.declare(ch); err != nil {
			return err
		}
		return t.drain(ctx, ch)
	})
	if err != nil {
		return fmt.Errorf("read the tap: %w", err)
	}
	return nil
}

// Read is [Tap.Drain], and returns all counts since the start by message id.
// Copies are of the exchange that a message was most often published to,
// deliveries of the queue that it was most often delivered from; final queues do
// not count, because people look at them. A message may be in no count for a
// moment after its confirm: settle first, then read.
func (t *Tap) Read(ctx context.Context) (copies, deliveries map[string]int, err error) {
	if err := t.Drain(ctx); err != nil {
		return nil, nil, err
	}
	return most(t.copies), most(t.deliveries), nil
}

// drain takes everything out of the tap's queue.
func (t *Tap) drain(ctx context.Context, ch *amqp.Channel) error {
	const prefetch, patience = 1000, 10 * time.Second
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return err
	}
	var deliveries <-chan amqp.Delivery
	for {
		waiting, err := ch.QueueDeclarePassive(tapQueue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		if err != nil {
			return err
		}
		if waiting.Messages == 0 {
			return nil
		}
		if deliveries == nil {
			// The consumer takes what has come meanwhile too; it is acked or comes again.
			if deliveries, err = ch.ConsumeWithContext(ctx, tapQueue, "", false, false, false, false, nil); err != nil {
				return err
			}
		}
		timeout := time.After(patience)
		var unacked []amqp.Delivery // counted once they are, or those that come again would count twice
		for n := range waiting.Messages {
			select {
			case d, ok := <-deliveries:
				if !ok {
					return amqp.ErrClosed
				}
				unacked = append(unacked, d)
				if n%100 == 99 || n == waiting.Messages-1 {
					if err := d.Ack(true); err != nil {
						return err
					}
					for _, d := range unacked {
						t.count(d)
					}
					unacked = unacked[:0]
				}
			case <-timeout:
				return fmt.Errorf("%d of %d messages in %s did not come within %s", waiting.Messages-n, waiting.Messages, tapQueue, patience)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (t *Tap) count(d amqp.Delivery) {
	properties, _ := d.Headers["properties"].(amqp.Table)
	id, _ := properties["message_id"].(string)
	if exchange, ok := strings.CutPrefix(d.RoutingKey, "publish."); ok {
		add(t.copies, id, exchange)
	}
	if queue, ok := strings.CutPrefix(d.RoutingKey, "deliver."); ok && !strings.HasSuffix(queue, ".dlq") {
		add(t.deliveries, id, queue)
	}
}

func add(counts map[string]map[string]int, id, where string) {
	if id == "" {
		return // none of ours
	}
	if counts[id] == nil {
		counts[id] = make(map[string]int, 1)
	}
	counts[id][where]++
}

func most(counts map[string]map[string]int) map[string]int {
	result := make(map[string]int, len(counts))
	for id, of := range counts {
		for n := range maps.Values(of) {
			result[id] = max(result[id], n)
		}
	}
	return result
}

// Stop ends tracing of the vhost and deletes the tap's queue.
func (t *Tap) Stop(ctx context.Context) error {
	err := t.trace(ctx, false)
	return errors.Join(err, t.with(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(tapQueue, false, false, false)
		return err
	}))
}

// with gives a channel of a connection of its own to do. There is no connection
// between two reads that a restart of the broker could break.
func (t *Tap) with(do func(*amqp.Channel) error) error {
	conn, err := amqp.DialConfig(t.amqpURL, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return do(ch)
}
