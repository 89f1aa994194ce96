package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/provision"
	"example.com/baton/shared/rabbit"
)

// Broker looks at the queues of one vhost through the management API.
type Broker struct {
	// Lag is how old the numbers may be that the management API gives. It defaults
	// to 12 seconds: by RabbitMQ's defaults a queue tells its length every 5
	// seconds, and the API samples every 5. It is the time that a look takes to
	// say that something is lost, and no other look takes it.
	Lag time.Duration
	// AMQPURL, when set, is the address of the vhost. Then what waits in a queue
	// is known at once, and the management API is asked only for what is in the
	// hands of consumers.
	AMQPURL string

	api   *provision.Management
	vhost string
}

// NewBroker reads an address such as http://user:password@127.0.0.1:15672. The
// user must be an administrator, or have the tag "monitoring" and the right to
// read the final queues; without that right dead letters are counted and not
// known by their ids.
func NewBroker(managementURL, vhost string) (*Broker, error) {
	api, err := provision.NewManagement(managementURL)
	if err != nil {
		return nil, err
	}
	return &Broker{Lag: 12 * time.Second, api: api, vhost: vhost}, nil
}

// depth is what the broker says of a queue and its retry queue.
type depth struct {
	messages  int // ready, in hands, or held by at-least-once dead-lettering
	consumers int
	retries   time.Duration // a message has been through all its retries after that
}

// queueInfo is a queue as the management API has it.
type queueInfo struct {
	Messages  int
	Unacked   int `json:"messages_unacknowledged"`
	Consumers int
	Arguments struct {
		TTL int64 `json:"x-message-ttl"`
	}
}

func (b *Broker) queue(ctx context.Context, name string) (q queueInfo, err error) {
	if b == nil {
		return q, nil
	}
	err = b.api.Do(ctx, http.MethodGet, provision.Path("queues", b.vhost, name), nil, &q)
	if provision.NotFound(err) { // its service has never run
		return queueInfo{}, nil
	}
	return q, err
}

func (b *Broker) depth(ctx context.Context, name string) (depth, error) {
	q, err := b.queue(ctx, name)
	if err != nil {
		return depth{}, err
	}
	retry, err := b.queue(ctx, name+".retry")
	if err != nil {
		return depth{}, err
	}
	waiting, err := b.waiting(name, name+".retry")
	if err != nil {
		return depth{}, err
	}
	const retries = 4 // one more than there are
	return depth{
		messages:  max(q.Messages+retry.Messages, q.Unacked+waiting),
		consumers: q.Consumers,
		retries:   retries * time.Duration(retry.Arguments.TTL) * time.Millisecond,
	}, nil
}

// exists is an error if there is no such vhost: its queues would all look empty.
func (b *Broker) exists(ctx context.Context) error {
	path := provision.Path("queues", b.vhost) + "?page=1&page_size=1"
	err := b.api.Do(ctx, http.MethodGet, path, nil, nil)
	if provision.NotFound(err) {
		return fmt.Errorf("the broker has no vhost %q", b.vhost)
	}
	return err
}

// waiting asks the queues themselves how many messages are ready in them; 0
// without an AMQP address.
func (b *Broker) waiting(queues ...string) (messages int, err error) {
	if b == nil || b.AMQPURL == "" {
		return 0, nil
	}
	conn, err := amqp.DialConfig(b.AMQPURL, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return 0, fmt.Errorf("ask queues for their length: %w", err)
	}
	defer conn.Close()
	for _, name := range queues {
		ch, err := conn.Channel() // a missing queue costs the channel
		if err != nil {
			return 0, fmt.Errorf("ask %s for its length: %w", name, err)
		}
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		var missing *amqp.Error
		if err != nil && (!errors.As(err, &missing) || missing.Code != amqp.NotFound) {
			return 0, fmt.Errorf("ask %s for its length: %w", name, err)
		}
		messages += q.Messages
	}
	return messages, nil
}

// certainAfter is how long after the first look the broker's numbers prove that
// what they do not contain is gone. A message that goes round the retry queue
// may be missing from both when each is counted, and does not go round for
// longer than its retries last.
func (b *Broker) certainAfter(suspects map[string]unheard, d depth) time.Duration {
	youngest := time.Duration(1<<63 - 1)
	for _, u := range suspects {
		youngest = min(youngest, u.age)
	}
	return max(b.Lag, b.Lag+d.retries-youngest)
}

// deadLetters are what is in a final queue.
type deadLetters struct {
	ids    map[string]bool
	count  int
	unread int // of those, not known by their ids
}

// MostDeadLetters is how many messages of a final queue are known by their ids.
const MostDeadLetters = 10_000

// gotten is a message as the management API shows it.
type gotten struct {
	Properties struct {
		MessageID string         `json:"message_id"`
		Headers   map[string]any `json:"headers"`
	}
}

// get looks into a queue and puts everything back.
func (b *Broker) get(ctx context.Context, queue string) (got []gotten, err error) {
	err = b.api.Do(ctx, http.MethodPost, provision.Path("queues", b.vhost, queue, "get"), map[string]any{
		"count": MostDeadLetters, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 1,
	}, &got)
	return got, err
}

// DeadLetter is a message in a final queue.
type DeadLetter struct {
	Queue   string `json:"queue"`
	EventID string `json:"event_id"`
	Reason  string `json:"reason,omitempty"`
}

// FindDead returns those of the messages that are in a final queue.
func (b *Broker) FindDead(ctx context.Context, eventIDs ...string) (found []DeadLetter, err error) {
	for _, w := range []way{forth, back} {
		name := w.queue + ".dlq"
		got, err := b.get(ctx, name)
		if err != nil && !provision.NotFound(err) {
			return nil, err
		}
		for _, m := range got {
			if id := m.Properties.MessageID; slices.Contains(eventIDs, id) {
				reason, _ := m.Properties.Headers[rabbit.ReasonHeader].(string)
				found = append(found, DeadLetter{name, id, reason})
			}
		}
	}
	return found, nil
}

// dead reads the final queue of a queue and leaves everything there. Each look
// counts as a delivery, of which these queues allow 100 000.
func (b *Broker) dead(ctx context.Context, queue string) (d deadLetters, problem string, err error) {
	d.ids = make(map[string]bool)
	if b == nil {
		return d, "", nil
	}
	name := queue + ".dlq"
	info, err := b.queue(ctx, name)
	if err != nil {
		return d, "", err
	}
	got, err := b.get(ctx, name)
	var status *provision.StatusError
	switch {
	case provision.NotFound(err):
	case errors.As(err, &status) && slices.Contains([]int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden}, status.Code):
		d.count, d.unread = info.Messages, info.Messages
		return d, fmt.Sprintf("the user may not read %s", name), nil
	case err != nil:
		return d, "", err
	}
	for _, m := range got {
		if id := m.Properties.MessageID; id != "" {
			d.ids[id] = true
		}
	}
	// The number is behind; what was read is not. Others may be looking too.
	d.count = max(len(got), info.Messages)
	if info.Messages > len(got) {
		d.unread = info.Messages - len(got)
	}
	return d, "", nil
}

// readDead reads the final queues of these directions.
func (l *look) readDead(ctx context.Context, ways ...way) error {
	if l.src.Broker == nil {
		l.Broker = "not checked"
		return nil
	}
	if err := l.src.Broker.exists(ctx); err != nil {
		return err
	}
	l.Broker = cmp.Or(l.Broker, "checked")
	for _, w := range ways {
		d, problem, err := l.src.Broker.dead(ctx, w.queue)
		if err != nil {
			return fmt.Errorf("read the final queue of %s: %w", w.queue, err)
		}
		l.Messages.DeadLetters += d.count - l.dead[w.queue].count
		l.dead[w.queue] = d
		if problem != "" {
			l.Broker = "counted only: " + problem
		}
	}
	return nil
}
