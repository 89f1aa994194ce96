package zoo

import "context"

// requeueLoop puts a message that failed back into its queue.
//
// Looks like: `d.Nack(false, true)` in the error branch; "it will be tried again".
//
// Why: it works for what heals in a moment, which is what one tries it with, and
// it is the default of many a client.
//
// Breaks: at the first message that always fails: it is delivered again at once,
// hundreds of times a second, at the head of the queue. The machine is busy, the
// log is full, and whatever waits behind it waits.
//
// Right: shared/rabbit/consumer.go: answer
func requeueLoop(ctx context.Context, s *stage) error {
	deliveries, err := s.deliveries(ctx)
	if err != nil {
		return err
	}
	for d := range deliveries {
		if err := s.handle(ctx, d.Body); err != nil {
			s.log.Error("message failed, putting it back", "message_id", d.MessageId, "err", err)
			if err := d.Nack(false, true); err != nil { // the mistake
				return err
			}
			continue
		}
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	return nil
}
