package system

import (
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// tapQueue gets a copy of everything that the relays send. It is bound only when
// the services' own queues are: a mandatory message that the tap alone takes
// would count as delivered.
const tapQueue = "tap"

func (s *System) tap() {
	s.t.Helper()
	testenv.Eventually(s.t, patience, "the services' own queues are bound", func() error {
		found, err := s.Broker.Bindings(s.t.Context())
		if err != nil {
			return err
		}
		for _, key := range []string{events.OrderCreated, events.OrderCancelled, events.InventoryReserved, events.InventoryRejected} {
			bound := func(b testenv.Binding) bool { return b.RoutingKey == key }
			if !slices.ContainsFunc(found, bound) {
				return fmt.Errorf("no queue is bound with %s", key)
			}
		}
		return nil
	})
	ch := testenv.Channel(s.t, s.Vhost)
	_, err := ch.QueueDeclare(tapQueue, true, false, false, false, nil)
	if err == nil {
		err = errors.Join(
			ch.QueueBind(tapQueue, "order.*", events.OrderExchange, false, nil),
			ch.QueueBind(tapQueue, "inventory.*", events.InventoryExchange, false, nil))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// Copies counts how often each event has reached the broker, by event id. Copies
// that the broker made itself, for a redelivery or a retry, are not among them.
// It counts from [System.Start] on.
func (s *System) Copies() map[string]int {
	s.t.Helper()
	for _, d := range s.read(tapQueue, true) {
		s.copies[d.MessageId]++
	}
	return s.copies
}

// Extra is how many more messages have reached the broker than there are events.
func (s *System) Extra() int {
	s.t.Helper()
	extra := 0
	for _, n := range s.Copies() {
		extra += n - 1
	}
	return extra
}

// Dead returns what is in the final dead-letter queue of a queue, and leaves it
// there.
func (s *System) Dead(queue string) []amqp.Delivery {
	s.t.Helper()
	return s.read(queue+".dlq", false)
}

// read gets everything out of a queue; unless it is to be taken it returns there
// when the channel is closed.
func (s *System) read(queue string, take bool) (all []amqp.Delivery) {
	s.t.Helper()
	conn, err := amqp.Dial(s.Vhost)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		s.t.Fatal(err)
	}
	for {
		d, ok, err := ch.Get(queue, take)
		if err != nil {
			s.t.Fatalf("get from %s: %v", queue, err)
		}
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

// Publish sends a message past the services, as the administrator may.
func (s *System) Publish(exchange, key string, msg amqp.Publishing) {
	s.t.Helper()
	msg.DeliveryMode = amqp.Persistent
	if err := testenv.Channel(s.t, s.Vhost).PublishWithContext(s.t.Context(), exchange, key, true, false, msg); err != nil {
		s.t.Fatal(err)
	}
}
