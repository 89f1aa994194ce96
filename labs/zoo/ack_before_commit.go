package zoo

import "context"

// ackBeforeCommit acknowledges a delivery and then does the work.
//
// Looks like: first tell the broker that we have it, then take our time. With
// autoAck it is the same without the line that one could notice.
//
// Why: work that takes long runs into the consumer timeout, and a message that
// fails would come back and block the queue; acked, it does neither.
//
// Breaks: when the process dies before its commit, or the commit fails. The
// broker has let go and nobody else has it.
//
// Right: shared/rabbit/consumer.go: answer
func ackBeforeCommit(ctx context.Context, s *stage) error {
	deliveries, err := s.deliveries(ctx)
	if err != nil {
		return err
	}
	for d := range deliveries {
		if err := d.Ack(false); err != nil { // the mistake
			return err
		}
		if err := s.handle(ctx, d.Body); err != nil { // "reserved" is before the commit
			s.log.Error("message failed", "message_id", d.MessageId, "err", err)
		}
	}
	return nil
}
