package zoo

import (
	"context"
	"time"

	"example.com/baton/shared/outbox"
)

// unknownAsSuccess relays with confirms, and when none comes in time it goes on:
// the message has left, after all.
//
// Looks like: a timeout that is logged as a warning, and a row that is marked as
// sent "so that we do not send it twice".
//
// Why: a duplicate is visible and a loss is not, so the fear is of the
// duplicate. Consumers that drop duplicates make it the cheap mistake of the
// two: what is unknown is sent again.
//
// Breaks: when the connection is dead and neither side knows yet, or the broker
// is in alarm and reads nothing: what was written to the socket is nowhere.
//
// Right: shared/rabbit/publisher.go: lostWith
func unknownAsSuccess(ctx context.Context, s *stage) error {
	const patience = time.Second
	return s.relay(ctx, func(ctx context.Context, m outbox.Message) error {
		confirm, err := s.publish(ctx, m)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		acked, err := confirm.WaitContext(ctx)
		switch {
		case err != nil:
			s.log.Warn("no confirm in time", "message_id", m.ID, "err", err)
			return nil // the mistake
		case s.returned(m.ID):
			return outbox.ErrUnroutable
		case !acked && s.ch.IsClosed():
			return outbox.ErrUnknown
		case !acked:
			return outbox.ErrRefused
		}
		return nil
	})
}
