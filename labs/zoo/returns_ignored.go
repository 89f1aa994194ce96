package zoo

import (
	"context"
	"fmt"

	"example.com/baton/shared/outbox"
)

// returnsIgnored relays with confirms, and takes each ack for arrival.
//
// Looks like: publisher confirms as the manual has them. The message is even
// mandatory, but nobody listens for what comes back.
//
// Why: "the broker has confirmed it" reads like "it is in the queue". An ack says
// that the broker has done with the message what there was to do, and for one
// that no queue wants that is nothing. It comes back first, as basic.return, on a
// channel that has to be asked for.
//
// Breaks: when a binding is missing, or a routing key has a typing error. Each
// row becomes Published and its message is gone. The log says success.
//
// Right: shared/rabbit/publisher.go: pairAnswers
func returnsIgnored(ctx context.Context, s *stage) error {
	return s.relay(ctx, func(ctx context.Context, m outbox.Message) error {
		confirm, err := s.publish(ctx, m)
		if err != nil {
			return err
		}
		acked, err := confirm.WaitContext(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", outbox.ErrUnknown, err)
		case !acked && s.ch.IsClosed():
			return outbox.ErrUnknown
		case !acked:
			return outbox.ErrRefused
		}
		return nil // the mistake: s.returned was not asked
	})
}
