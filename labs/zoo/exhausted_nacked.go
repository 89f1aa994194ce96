package zoo

import "context"

// exhaustedNacked tries a message four times, by the retry queue, and rejects it
// for good after that.
//
// Looks like: "without requeue it goes to the dead-letter queue", which is what
// the manual says.
//
// Why: a queue has one dead-letter exchange. Here it is the way to the retry
// queue, so giving up and trying again are the same word to the broker.
//
// Breaks: at the first message that cannot be handled. It goes round for ever,
// each time counted as given up, and the final queue stays empty.
//
// Right: shared/rabbit/forwarder.go: forward
func exhaustedNacked(ctx context.Context, s *stage) error {
	const retries = 3
	deliveries, err := s.deliveries(ctx)
	if err != nil {
		return err
	}
	for d := range deliveries {
		failed := s.handle(ctx, d.Body)
		switch {
		case failed == nil:
			err = d.Ack(false)
		case failures(d) < retries:
			s.log.Warn("message failed, will be tried again", "message_id", d.MessageId, "err", failed)
			err = d.Nack(false, false)
		default:
			s.log.Error("message given up", "message_id", d.MessageId, "err", failed)
			err = d.Reject(false) // the mistake: it does not end, it waits and comes back
		}
		if err != nil {
			return err
		}
	}
	return nil
}
