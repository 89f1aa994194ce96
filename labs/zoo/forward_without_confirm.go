package zoo

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
)

// forwardWithoutConfirm tries a message four times, by the retry queue, then
// publishes it to the final dead-letter exchange and acknowledges it.
//
// Looks like: the right thing. The error of Publish is looked at.
//
// Why: confirms are for the important messages, and this is the dustbin. But the
// final queue is where a person looks for an order that went wrong, and a nil
// error of Publish says that bytes were written to a socket.
//
// Breaks: when the final queue is not bound, not there, or full, or the broker
// dies with the message in its hands. The acknowledgement then lets go of the only
// copy, and the log says where to find it.
//
// Right: shared/rabbit/forwarder.go: publishAndWait
func forwardWithoutConfirm(ctx context.Context, s *stage) error {
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
			// The mistake: neither mandatory nor confirmed.
			err = s.ch.PublishWithContext(ctx, "inventory.dlx", queueName, false, false, amqp.Publishing{
				MessageId: d.MessageId, Type: d.Type, Timestamp: d.Timestamp, ContentType: d.ContentType,
				DeliveryMode: amqp.Persistent, Body: d.Body,
			})
			if err == nil {
				s.log.Error("message dead-lettered", "message_id", d.MessageId, "err", failed)
				err = d.Ack(false)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
