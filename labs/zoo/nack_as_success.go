package zoo

import (
	"context"
	"fmt"

	"github.com/rabbitmq/amqp091-go"

	"example.com/baton/shared/outbox"
)

// nackAsSuccess relays with confirms, and waits for one without looking at what
// it says.
//
// Looks like: `<-confirms`, as in many an example. In another dress it is
// `confirm.Wait()` with its result thrown away.
//
// Why: a nack is rare enough that nobody has seen one, and the word confirm
// sounds like yes.
//
// Breaks: when a queue is full and rejects, or a quorum queue has lost its
// majority. And when the channel closes, which closes this channel as well and
// reads as a confirm of nothing.
//
// Right: shared/rabbit/publisher.go: pairAnswers
func nackAsSuccess(ctx context.Context, s *stage) error {
	confirms := s.ch.NotifyPublish(make(chan amqp091.Confirmation, 1))
	return s.relay(ctx, func(ctx context.Context, m outbox.Message) error {
		if _, err := s.publish(ctx, m); err != nil {
			return err
		}
		select {
		case <-confirms: // the mistake: it has a field Ack
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", outbox.ErrUnknown, ctx.Err())
		}
		if s.returned(m.ID) {
			return outbox.ErrUnroutable
		}
		return nil
	})
}
