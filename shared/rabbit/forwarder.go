package rabbit

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/shared/outbox"
)

// forwarder moves deliveries to where a nack would not bring them, one at a
// time: the copy is confirmed and not returned before the original is acked, so
// that a crash in between makes two and never none. Until then the delivery stays
// unsettled and is tried again.
type forwarder struct {
	*hands
	finals *Publisher
	parked chan parked
	done   chan struct{} // closed when run has returned
}

// parked is a delivery on its way out.
type parked struct {
	received
	dead   bool // to the final queue, else to the retry queue
	reason error
}

// message is the copy that is published.
func (p parked) message(bare bool) amqp.Publishing {
	msg := p.forwarded(bare)
	if p.dead {
		reason := p.reason.Error()
		if len(reason) > maxReason {
			reason = reason[:maxReason]
		}
		msg.Headers[AttemptsHeader] = int32(p.pastRetries + 1)
		msg.Headers[ReasonHeader] = reason
	}
	return msg
}

func newForwarder(h *hands, finals *Publisher) *forwarder {
	// The prefetch bounds what can be parked, so that adding never blocks.
	return &forwarder{hands: h, finals: finals, parked: make(chan parked, h.prefetch()), done: make(chan struct{})}
}

func (f *forwarder) add(r received, dead bool, reason error) { f.parked <- parked{r, dead, reason} }

// finish waits for what is parked, no longer than ctx and the session last.
func (f *forwarder) finish(ctx context.Context) {
	close(f.parked)
	select {
	case <-f.done:
	case <-ctx.Done():
	case <-f.session.over():
	}
}

// run forwards what is parked until finish, or until the session is over:
// nothing that was delivered on it can be acked then.
func (f *forwarder) run() {
	defer close(f.done)
	ctx := f.session.life
	for p := range f.parked {
		for tries := 1; ctx.Err() == nil; tries++ {
			err := f.forward(ctx, p, tries)
			if err == nil {
				if tries > 1 {
					f.status.connected()
				}
				break
			}
			if ctx.Err() != nil {
				return
			}
			f.status.problem("cannot forward to the final dead-letter queue: " + err.Error())
			if tries == 1 {
				f.log.Warn("message not forwarded, kept and tried again", "message_id", p.MessageId, "err", err)
			}
			if !errors.Is(err, outbox.ErrUnreachable) {
				f.finals.Reset(err) // a new session declares the queue again
			}
			pause(ctx, min(redialFirst<<min(tries, 10), redialCap))
		}
	}
}

const forwardTimeout = 20 * time.Second

// forward publishes a copy, waits for its confirm and acks the original.
func (f *forwarder) forward(ctx context.Context, p parked, tries int) error {
	exchange, key := f.Queue.retryExchange(), f.Queue.Name
	if p.dead {
		exchange, key = f.Queue.deadExchange(), f.Queue.deadKey()
	}
	msg := p.message(tries > 3) // headers that fill their frame leave no room for ours
	if err := f.publishAndWait(ctx, exchange, key, msg); err != nil {
		return err
	}
	if p.dead {
		if err := f.observe(ctx, StepDeadLettered, []received{p.received}); err != nil {
			f.session.end(err)
			return nil
		}
	}
	if err := f.settler.ack(p.DeliveryTag); err != nil {
		f.session.failed(fmt.Errorf("ack: %w", err))
		return nil
	}
	if p.dead {
		f.counts.DeadLettered.Add(1)
		f.log.Error("message dead-lettered: look at it in the final queue", "message_id", p.MessageId, "topic", p.Type,
			"attempt", p.pastRetries+1, "dead_letter_queue", f.Queue.DeadName(), "err", p.reason)
	} else {
		f.counts.Retried.Add(1)
		f.log.Warn("message failed and carried a forged x-death, will be tried again without it",
			"message_id", p.MessageId, "topic", p.Type, "attempt", p.pastRetries+1, "err", p.reason)
	}
	return nil
}

func (f *forwarder) publishAndWait(ctx context.Context, exchange, key string, msg amqp.Publishing) error {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	if err := f.finals.Ready(ctx); err != nil {
		return fmt.Errorf("%w: %s", outbox.ErrUnreachable, f.finals.State().Problem)
	}
	outcome := make(chan error, 1)
	f.finals.publish(ctx, outgoing{exchange, key, msg, func(err error) { outcome <- err }})
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
		return outbox.ErrUnknown
	}
}

// declareDead makes the final exchange and queue, for a session that only
// forwards. The retry exchange is there: the consumer has declared it.
func (q Queue) declareDead(ch *amqp.Channel) error {
	if err := ch.ExchangeDeclare(q.deadExchange(), amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
		return fmt.Errorf("declare exchange %s: %w", q.deadExchange(), err)
	}
	if _, err := ch.QueueDeclare(q.DeadName(), true, false, false, false, q.args("")); err != nil {
		return fmt.Errorf("declare queue %s: %w", q.DeadName(), err)
	}
	if err := ch.QueueBind(q.DeadName(), q.deadKey(), q.deadExchange(), false, nil); err != nil {
		return fmt.Errorf("bind queue %s: %w", q.DeadName(), err)
	}
	return nil
}
