package outbox

import (
	"context"
	"errors"
)

// Publisher hands messages to a broker. Package rabbit has one.
type Publisher interface {
	// Ready blocks until messages can be sent, or returns the error of ctx.
	// The relay claims nothing before it returns nil.
	Ready(ctx context.Context) error

	// Publish sends msgs in order and calls settle exactly once for each, with
	// its index and what became of it: nil once the broker has taken
	// responsibility for it, else an error that wraps one of the five below.
	// settle may be called before or after Publish returns and from any
	// goroutine, so that many messages are in flight at once. No message is
	// sent after ctx is done or its deadline has passed.
	Publish(ctx context.Context, msgs []Message, settle func(i int, err error))
}

// What can become of a message other than a confirm. Publishers wrap them with
// what they know; the text ends in last_error.
var (
	// ErrUnroutable: the broker has the message and no queue wanted it
	// (basic.return). Costs an attempt.
	ErrUnroutable = errors.New("unroutable")
	// ErrRefused: the broker said no (basic.nack). Costs an attempt.
	ErrRefused = errors.New("refused")
	// ErrUnknown: sent, and no answer: the broker may or may not have it. It is
	// sent again with the same id and costs nothing.
	ErrUnknown = errors.New("outcome unknown")
	// ErrUnreachable: never sent. The claim is given back.
	ErrUnreachable = errors.New("broker unreachable")
	// ErrMisconfigured: the broker closed the channel because of what was asked
	// (403, 404, 406). Which message was at fault is not known, so it is as
	// unknown until a message that was alone in flight meets it: that one is
	// taken as refused.
	ErrMisconfigured = errors.New("broker misconfigured")
)
