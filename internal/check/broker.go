package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
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

// depth is what the broker says of a queue and its retry queue, and of those that
// share its work.
type depth struct {
	messages int           // ready, in hands, or held by at-least-once dead-lettering
	retries  time.Duration // a message has been through all its retries after that
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
	names, err := b.sharing(ctx, name)
	if err != nil {
		return depth{}, err
	}
	var d depth
	for _, name := range names {
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
		d.messages += max(q.Messages+retry.Messages, q.Unacked+waiting)
		d.retries = max(d.retries, retries*time.Duration(retry.Arguments.TTL)*time.Millisecond)
	}
	return d, nil
}

// sharing names a queue and those that share its work (rabbit.Queue.Split), however
// many there are or are left from before: "x", "x.2", "x.3".
func (b *Broker) sharing(ctx context.Context, name string) ([]string, error) {
	names := []string{name}
	if b == nil {
		return names, nil
	}
	var all []struct{ Name string }
	if err := b.api.Do(ctx, http.MethodGet, provision.Path("queues", b.vhost)+"?columns=name", nil, &all); err != nil {
		return nil, err
	}
	for _, q := range all {
		number, found := strings.CutPrefix(q.Name, name+".")
		if _, err := strconv.Atoi(number); found && err == nil {
			names = append(names, q.Name)
		}
	}
	return names, nil
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
	conn, err := b.dial()
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

func (b *Broker) dial() (*amqp.Connection, error) {
	if _, err := amqp.ParseURI(b.AMQPURL); err != nil {
		return nil, errors.New("the address of the broker is no AMQP URL") // err would show the password
	}
	return amqp.DialConfig(b.AMQPURL, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
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

// DeadLetter is a message in a final queue.
type DeadLetter struct {
	Queue   string `json:"queue"`
	EventID string `json:"event_id"`
	Reason  string `json:"reason,omitempty"`
}

// errForbidden says that the user may not read a queue.
var errForbidden = errors.New("the user may not read it")

// look reads a queue and puts everything back. By AMQP that is a nack with
// requeue, as readers of final queues do it; the management API, without an AMQP
// address, delivers each message once more, which the queue allows 100 000 times.
// A queue that is not there is empty.
func (b *Broker) look(ctx context.Context, queue string) (found []DeadLetter, err error) {
	if b.AMQPURL != "" {
		return b.lookByAMQP(queue)
	}
	var got []struct {
		Properties struct {
			MessageID string         `json:"message_id"`
			Headers   map[string]any `json:"headers"`
		}
	}
	err = b.api.Do(ctx, http.MethodPost, provision.Path("queues", b.vhost, queue, "get"), map[string]any{
		"count": MostDeadLetters, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 1,
	}, &got)
	var status *provision.StatusError
	switch {
	case provision.NotFound(err):
	case errors.As(err, &status) && slices.Contains([]int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden}, status.Code):
		return nil, errForbidden
	case err != nil:
		return nil, err
	}
	for _, m := range got {
		reason, _ := m.Properties.Headers[rabbit.ReasonHeader].(string)
		found = append(found, DeadLetter{queue, m.Properties.MessageID, reason})
	}
	return found, nil
}

func (b *Broker) lookByAMQP(queue string) (found []DeadLetter, err error) {
	conn, err := b.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	var last uint64
	for len(found) < MostDeadLetters {
		d, ok, err := ch.Get(queue, false)
		var refused *amqp.Error
		switch {
		case errors.As(err, &refused) && refused.Code == amqp.NotFound:
			return nil, nil
		case errors.As(err, &refused) && refused.Code == amqp.AccessRefused:
			return nil, errForbidden
		case err != nil:
			return nil, err // and all goes back with the connection
		}
		if !ok {
			break
		}
		reason, _ := d.Headers[rabbit.ReasonHeader].(string)
		found, last = append(found, DeadLetter{queue, d.MessageId, reason}), d.DeliveryTag
	}
	if last == 0 {
		return nil, nil
	}
	return found, ch.Nack(last, true, true)
}

// FindDead returns those of the messages that are in a final queue.
func (b *Broker) FindDead(ctx context.Context, eventIDs ...string) (found []DeadLetter, err error) {
	for _, w := range []way{forth, back} {
		letters, err := b.look(ctx, w.queue+".dlq")
		if err != nil {
			return nil, fmt.Errorf("read %s.dlq: %w", w.queue, err)
		}
		for _, m := range letters {
			if slices.Contains(eventIDs, m.EventID) {
				found = append(found, m)
			}
		}
	}
	return found, nil
}

// dead reads the final queue of a queue and leaves everything there.
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
	found, err := b.look(ctx, name)
	switch {
	case errors.Is(err, errForbidden):
		d.count, d.unread = info.Messages, info.Messages
		return d, fmt.Sprintf("the user may not read %s", name), nil
	case err != nil:
		return d, "", err
	}
	for _, m := range found {
		if m.EventID != "" {
			d.ids[m.EventID] = true
		}
	}
	// The number is behind; what was read is not. Others may be looking too.
	d.count = max(len(found), info.Messages)
	if info.Messages > len(found) {
		d.unread = info.Messages - len(found)
	}
	return d, "", nil
}

// knowsDead reports whether every dead letter of a direction is known by its id.
func (l *look) knowsDead(w way) bool {
	return l.src.Broker != nil && l.dead[w.queue].unread == 0
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
