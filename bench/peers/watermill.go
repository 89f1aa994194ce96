package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"example.com/baton/shared/outbox"
)

// The forwarder as https://watermill.io/advanced/forwarder shows it, with
// PostgreSQL and RabbitMQ, and with confirms and Mandatory on top, since without
// them a message may be lost on its way.
var watermillDocumented = setup{
	modules:   watermillModules,
	guarantee: watermillGuarantee,
	settings:  "forwarder; batch 100, poll 1 s, a channel per message (all three the defaults), ConfirmDelivery, Mandatory",
	open:      openForwarder(forwarding{}),
}

// What its configuration offers. It has no setting for more than one message in
// flight: a second forwarder of the topic would wait for the first one's locks.
var watermillTuned = setup{
	modules:   watermillModules,
	guarantee: watermillGuarantee,
	settings:  "forwarder; batch 1000, poll 10 ms, pool of 8 channels, ConfirmDelivery, Mandatory",
	open:      openForwarder(forwarding{batch: 1000, poll: 10 * time.Millisecond, channels: 8}),
}

var watermillModules = []string{
	"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/ThreeDotsLabs/watermill-amqp/v3",
}

const watermillGuarantee = "at least once and in order, each message persistent and confirmed before the next, " +
	"but watermill-amqp has no return handler: an unroutable message is returned and confirmed, and counts as sent"

// forwarding holds the settings of a forwarder; zero values are watermill's own.
type forwarding struct {
	batch    int
	poll     time.Duration
	channels int
}

// forwarderTopic names the outbox table.
const forwarderTopic = "outbox"

func openForwarder(f forwarding) func(context.Context, *bed) (worker, error) {
	return func(_ context.Context, b *bed) (worker, error) {
		logger := watermillLogger(b)
		db := wsql.BeginnerFromPgx(b.db)
		schema := wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: f.batch}
		outboxPublisher, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, logger)
		if err != nil {
			return nil, err
		}
		subscriber, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
			SchemaAdapter: schema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
			InitializeSchema: true, PollInterval: f.poll,
		}, logger)
		if err != nil {
			return nil, err
		}
		config := watermillAMQP(b)
		config.Publish.ConfirmDelivery = true
		config.Publish.Mandatory = true
		config.Publish.ChannelPoolSize = f.channels
		publisher, err := wamqp.NewPublisher(config, logger)
		if err != nil {
			return nil, err
		}
		broker := &counting{Publisher: publisher, meter: b.meter}
		fwd, err := forwarder.NewForwarder(subscriber, broker, logger, forwarder.Config{ForwarderTopic: forwarderTopic})
		if err != nil {
			return nil, errors.Join(err, broker.Close())
		}
		return &forwarderWorker{
			bed: b, broker: broker, forwarder: fwd,
			outbox: forwarder.NewPublisher(outboxPublisher, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic}),
		}, nil
	}
}

// watermillAMQP is the library's configuration for a topic exchange, made as
// durable as the queue.
func watermillAMQP(b *bed) wamqp.Config {
	config := wamqp.NewDurableTopicConfig(b.address.amqp, exchangeName, queueName)
	config.Exchange.Durable = true
	config.Queue.Arguments = queueArguments(b.address.queueType)
	return config
}

func watermillLogger(b *bed) watermill.LoggerAdapter { return watermill.NewSlogLogger(b.log) }

// runUntil runs a router or forwarder until ctx is done, and lets it finish what
// is inside the gate, which is closed when runUntil returns.
func runUntil(ctx context.Context, b *bed, g *gate, r interface {
	Run(context.Context) error
	Close() error
}) error {
	closed := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		b.level.Set(silent) // it reports as errors what it cancels itself
		closed <- r.Close()
	})
	err := r.Run(context.WithoutCancel(ctx))
	if !stop() {
		err = errors.Join(err, <-closed)
	}
	g.close()
	return err
}

// gate is what a message goes through on its way to being handled. The router
// waits for handlers and for subscriptions at the same time when it closes, so
// it may forget a message that a subscription hands out meanwhile.
type gate struct {
	mu     sync.RWMutex
	closed bool
}

var errClosed = errors.New("stopped")

// enter is followed by leave, unless it returns errClosed.
func (g *gate) enter() error {
	g.mu.RLock()
	if g.closed {
		g.mu.RUnlock()
		return errClosed
	}
	return nil
}

func (g *gate) leave() { g.mu.RUnlock() }

func (g *gate) close() {
	g.mu.Lock() // waits for those inside
	g.closed = true
	g.mu.Unlock()
}

type forwarderWorker struct {
	*bed
	outbox    *forwarder.Publisher
	broker    *counting
	forwarder *forwarder.Forwarder
}

// fill writes as the library does, a thousand rows a statement.
func (w *forwarderWorker) fill(ctx context.Context, msgs []outbox.Message) error {
	for chunk := range slices.Chunk(msgs, 1000) {
		rows := make([]*message.Message, len(chunk))
		for i, m := range chunk {
			rows[i] = message.NewMessageWithContext(ctx, m.ID, m.Payload)
			for k, v := range m.Headers {
				rows[i].Metadata.Set(k, v)
			}
		}
		if err := w.outbox.Publish(routingKey, rows...); err != nil {
			return err
		}
	}
	return nil
}

func (w *forwarderWorker) run(ctx context.Context) error {
	return errors.Join(runUntil(ctx, w.bed, &w.broker.gate, w.forwarder), w.broker.Close())
}

func (w *forwarderWorker) verify(ctx context.Context, handled int) error {
	return w.queue.holds(ctx, handled, handled)
}

// counting is a publisher that counts what it sent. With ConfirmDelivery it
// returns nil only when the broker has confirmed.
type counting struct {
	message.Publisher
	meter *meter
	gate  gate
}

func (c *counting) Publish(topic string, messages ...*message.Message) error {
	if err := c.gate.enter(); err != nil {
		return err
	}
	defer c.gate.leave()
	if err := c.Publisher.Publish(topic, messages...); err != nil {
		c.meter.fail(err)
		return err
	}
	for range messages {
		c.meter.add()
	}
	return nil
}
