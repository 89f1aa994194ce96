package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

const (
	exchangeName = "baton-peers.events"
	queueName    = "baton-peers"
	routingKey   = events.OrderCreated
)

// queue is the one durable queue of a run, behind an exchange of its own.
type queue struct {
	conn *amqp.Connection
	ch   *amqp.Channel
}

func openQueue(url, queueType string) (*queue, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	ch, err := declare(conn, queueType)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &queue{conn, ch}, nil
}

func declare(conn *amqp.Connection, queueType string) (*amqp.Channel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.ExchangeDeclare(exchangeName, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return nil, err
	}
	q, err := ch.QueueDeclare(queueName, true, false, false, false, queueArguments(queueType))
	if err != nil {
		return nil, err
	}
	if q.Messages > 0 {
		return nil, fmt.Errorf("%s already holds %d messages", queueName, q.Messages)
	}
	return ch, ch.QueueBind(queueName, routingKey, exchangeName, false, nil)
}

func queueArguments(queueType string) amqp.Table {
	return amqp.Table{amqp.QueueTypeArg: queueType}
}

func (q *queue) delete() error {
	_, err := q.ch.QueueDelete(queueName, false, false, false)
	return errors.Join(err, q.ch.ExchangeDelete(exchangeName, false, false), q.conn.Close())
}

// holds returns an error unless the queue comes to hold from low to high
// messages. It has a moment: what a consumer did not acknowledge comes back only
// when the broker has noticed that its connection is closed.
func (q *queue) holds(ctx context.Context, low, high int) error {
	const patience, pause = 10 * time.Second, 50 * time.Millisecond
	for begin := time.Now(); ; {
		got, err := q.ch.QueueDeclarePassive(queueName, true, false, false, false, nil)
		switch {
		case err != nil:
			return fmt.Errorf("depth of the queue: %w", err)
		case low <= got.Messages && got.Messages <= high:
			return nil
		case time.Since(begin) > patience:
			return fmt.Errorf("the queue holds %d messages, want %d to %d", got.Messages, low, high)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// publisher sends any number of messages at once on one channel, each persistent,
// mandatory and confirmed.
type publisher struct {
	conn *amqp.Connection
	ch   *amqp.Channel

	mu       sync.Mutex
	returns  chan amqp.Return
	returned map[string]bool
}

// newPublisher is for as many messages at once as inFlight says.
func newPublisher(url string, inFlight int) (*publisher, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &publisher{
		conn: conn, ch: ch,
		returns:  ch.NotifyReturn(make(chan amqp.Return, inFlight)),
		returned: map[string]bool{},
	}, nil
}

func (p *publisher) close() error { return p.conn.Close() }

// publish returns nil once the broker has taken m and put it into a queue.
func (p *publisher) publish(ctx context.Context, m outbox.Message) error {
	headers := make(amqp.Table, len(m.Headers))
	for k, v := range m.Headers {
		headers[k] = v
	}
	confirm, err := p.ch.PublishWithDeferredConfirmWithContext(ctx, exchangeName, m.Type, true, false, amqp.Publishing{
		MessageId:    m.ID,
		Type:         m.Type,
		Timestamp:    m.OccurredAt,
		ContentType:  "application/json",
		DeliveryMode: amqp.Persistent,
		Headers:      headers,
		Body:         m.Payload,
	})
	if err != nil {
		return fmt.Errorf("publish %s: %w", m.ID, err)
	}
	acked, err := confirm.WaitContext(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("confirm of %s: %w", m.ID, err)
	case !acked:
		return fmt.Errorf("%s was not confirmed", m.ID)
	case p.wasReturned(m.ID):
		return fmt.Errorf("%s was returned: no queue for it", m.ID)
	}
	return nil
}

// wasReturned is for a message that has been confirmed: its return, if there was
// one, is in the channel by then.
func (p *publisher) wasReturned(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		select {
		case r, open := <-p.returns:
			if open {
				p.returned[r.MessageId] = true
				continue
			}
		default:
		}
		return p.returned[id]
	}
}
