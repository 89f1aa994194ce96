package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/samples"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// BenchmarkPublisher has messages confirmed by a broker, as many in flight as the
// publisher allows. An operation is one message.
func BenchmarkPublisher(b *testing.B) {
	for _, kind := range []string{"classic", "quorum"} {
		b.Run("queue="+kind, func(b *testing.B) {
			vhost := testenv.Vhost(b)
			p := publishing(b, vhost)
			ch := testenv.Channel(b, vhost)
			if _, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": kind}); err != nil {
				b.Fatal(err)
			}
			if err := ch.QueueBind("q", "order.created", p.Exchange, false, nil); err != nil {
				b.Fatal(err)
			}
			msgs := messagesToSend()
			b.ReportAllocs()
			b.ResetTimer()
			publish(b, p, msgs, b.N)
			b.StopTimer()
			testenv.ReportRate(b, "msg")
		})
	}
}

// BenchmarkConsumer takes messages from a full queue and does nothing with them
// but ack. An operation is one message.
func BenchmarkConsumer(b *testing.B) {
	vhost := testenv.Vhost(b)
	p := publishing(b, vhost) // which declares the exchange
	acked, all, begin := 0, make(chan struct{}), make(chan struct{})
	end := sync.OnceFunc(func() { close(all) })
	c := &rabbit.Consumer{
		URL:    vhost,
		Queue:  rabbit.Queue{Name: "inventory.order-events", Owner: "inventory", Source: p.Exchange, Keys: []string{"order.created"}},
		Logger: slog.New(slog.DiscardHandler),
		Handle: func(_ context.Context, batch []rabbit.Delivery) []error {
			<-begin
			return make([]error, len(batch))
		},
		Observe: func(_ context.Context, step string, ids []string) error {
			if step == rabbit.StepAcked { // of one goroutine
				if acked += len(ids); acked >= b.N { // more, if some were delivered again
					end()
				}
			}
			return nil
		},
	}
	running(b, c.Run)
	testenv.Eventually(b, patience, "the consumer", func() error {
		if s := c.State(); !s.Connected {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	publish(b, p, messagesToSend(), b.N)

	b.ReportAllocs()
	b.ResetTimer()
	close(begin) // the prefetch is there already, the others wait in the queue
	<-all
	b.StopTimer()
	testenv.ReportRate(b, "msg")
}

const patience = 30 * time.Second

func publishing(b *testing.B, vhost string) *rabbit.Publisher {
	b.Helper()
	p := &rabbit.Publisher{URL: vhost, Exchange: "orders.events", AppID: "bench", Logger: slog.New(slog.DiscardHandler)}
	running(b, p.Run)
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		b.Fatalf("%v: %+v", err, p.State())
	}
	return p
}

// running runs f until the benchmark ends.
func running(b *testing.B, f func(context.Context) error) {
	b.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(b.Context()))
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := f(ctx); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() { stop(); ended.Wait() })
}

// messagesToSend are more messages than can be in flight at once, to be sent over and
// over: two with one id must not be in flight together.
func messagesToSend() []outbox.Message { return samples.Events(10_000, "b") }

// publish sends n messages, in the portions that a relay does, and returns when
// all are confirmed.
func publish(b *testing.B, p *rabbit.Publisher, msgs []outbox.Message, n int) {
	b.Helper()
	const portion = 100 // divides the number of samples
	var left atomic.Int64
	left.Store(int64(n))
	all := make(chan struct{})
	var failed atomic.Value
	for sent := 0; sent < n; sent += portion {
		from := sent % len(msgs)
		p.Publish(b.Context(), msgs[from:from+min(portion, n-sent)], func(_ int, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, errors.New(err.Error()))
			}
			if left.Add(-1) == 0 {
				close(all)
			}
		})
	}
	<-all
	if err := failed.Load(); err != nil {
		b.Fatal(err)
	}
}
