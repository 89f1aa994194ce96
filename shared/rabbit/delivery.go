package rabbit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Delivery is a message as a handler sees it. There is no tag: only the consumer
// settles.
type Delivery struct {
	MessageID   string
	Type        string // use this and not the routing key, which a retry changes
	RoutingKey  string
	Body        []byte
	Timestamp   time.Time
	Headers     map[string]any // as the client library decodes them: trust no type
	Redelivered bool
	// Attempt is 1 for the first delivery and one more after each stay in the
	// retry queue. A redelivery after a crash does not count.
	Attempt int
}

// Permanent marks err as one that another attempt cannot mend: the message goes
// to the final dead-letter queue at once, with err as its reason.
func Permanent(err error) error { return marked{permanentMark, err} }

// Unavailable marks err as an outage and not the message's own fault: the
// message is held and tried again until it heals, and no attempt is spent.
func Unavailable(err error) error { return marked{unavailableMark, err} }

// IsPermanent reports whether err is marked by [Permanent].
func IsPermanent(err error) bool { return markOf(err) == permanentMark }

// IsUnavailable reports whether err is marked by [Unavailable].
func IsUnavailable(err error) bool { return markOf(err) == unavailableMark }

type mark int

const (
	permanentMark mark = iota + 1
	unavailableMark
)

type marked struct {
	mark mark
	err  error
}

func (m marked) Error() string { return m.err.Error() }
func (m marked) Unwrap() error { return m.err }

func markOf(err error) mark {
	var m marked
	if errors.As(err, &m) {
		return m.mark
	}
	return 0
}

// received is a delivery with what only the consumer needs.
type received struct {
	amqp.Delivery
	pastRetries int  // stays in the retry queue so far
	forged      bool // carries an x-death that the broker did not write on this round
	crashes     int  // deliveries that ended without an answer, x-delivery-count
}

func (q Queue) receive(d amqp.Delivery) received {
	r := received{Delivery: d}
	death, has := d.Headers["x-death"]
	if d.Exchange == q.returnExchange() {
		r.pastRetries = q.pastRetries(death)
	} else {
		r.forged = has
	}
	if n, ok := integer(d.Headers["x-delivery-count"]); ok && n > 0 {
		r.crashes = int(min(n, math.MaxInt32))
	}
	return r
}

// pastRetries counts the times a message has been through the retry queue, from
// the x-death header of a delivery that came through the way back, where the
// broker wrote it. Each round leaves a rejection by the queue, or another kind
// of death in it, and an expiry in the retry queue, so that counting all entries
// would count twice; and a message that was forwarded to the retry queue by
// hand has the expiry only. A header that cannot be understood counts as all
// attempts spent: the message ends in the final queue and is not tried for ever.
func (q Queue) pastRetries(header any) int {
	exhausted := q.retries()
	entries, ok := header.([]any)
	if !ok || len(entries) == 0 {
		return exhausted
	}
	var rejected, expired int64 // no more than mostRounds each, whatever the header adds up to
	for _, entry := range entries {
		t, ok := entry.(amqp.Table)
		if !ok {
			return exhausted
		}
		queue, _ := t["queue"].(string)
		reason, _ := t["reason"].(string)
		count, ok := integer(t["count"])
		if !ok || count < 0 {
			return exhausted
		}
		switch {
		case queue == q.Name && (reason == "rejected" || reason == "delivery_limit"):
			rejected = min(rejected+min(count, mostRounds), mostRounds)
		case queue == q.RetryName() && reason == "expired":
			expired = min(expired+min(count, mostRounds), mostRounds)
		}
	}
	return int(max(rejected, expired))
}

// mostRounds is the most that pastRetries says: one more still fits the header
// with the attempts.
const mostRounds = math.MaxInt32 - 1

// integer reads a whole number of any width; other clients write any.
func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int8:
		return int64(n), true
	case uint8:
		return int64(n), true
	case int16:
		return int64(n), true
	case uint16:
		return int64(n), true
	case int32:
		return int64(n), true
	case uint32:
		return int64(n), true
	case int64:
		return n, true
	case int:
		return int64(n), true
	}
	return 0, false
}

// exhausted reports whether a failure of this delivery is its last.
func (r received) exhausted(q Queue) bool { return r.pastRetries >= q.retries() }

// id names the message where it has to be remembered.
func (r received) id() string {
	if r.MessageId != "" {
		return r.MessageId
	}
	sum := sha256.Sum256(r.Body)
	return "body:" + hex.EncodeToString(sum[:])
}

func (r received) handed() Delivery {
	return Delivery{
		MessageID: r.MessageId, Type: r.Type, RoutingKey: r.RoutingKey, Body: r.Body, Timestamp: r.Timestamp,
		Headers: r.Headers, Redelivered: r.Redelivered, Attempt: r.pastRetries + 1,
	}
}

// Headers of a message in the final dead-letter queue.
const (
	AttemptsHeader = "x-baton-attempts" // deliveries that were handled, int32
	ReasonHeader   = "x-baton-reason"   // why it ended here
)

const maxReason = 1024 // bytes; the header frame has to fit into 128 KiB

// forwarded is the copy of a delivery that goes to the final queue, or, with
// headers cleaned, to the retry queue. The body and what the producer said stay
// as they are. Left out: what the broker or a forger wrote about earlier deaths,
// CC and BCC, which would send copies elsewhere, user_id, which the broker would
// compare with our own name, and expiration, which would delete it.
func (r received) forwarded(bare bool) amqp.Publishing {
	headers := amqp.Table{}
	for k, v := range r.Headers {
		switch k {
		case "x-death", "CC", "BCC", "x-delivery-count", "x-acquired-count",
			"x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
			"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason":
			continue
		}
		if !bare && (amqp.Table{k: v}).Validate() == nil {
			headers[k] = v
		}
	}
	return amqp.Publishing{
		Headers: headers, Body: r.Body, DeliveryMode: amqp.Persistent,
		MessageId: r.MessageId, Type: r.Type, Timestamp: r.Timestamp,
		ContentType: r.ContentType, ContentEncoding: r.ContentEncoding,
		CorrelationId: r.CorrelationId, AppId: r.AppId, Priority: r.Priority,
	}
}

func (r received) String() string { return fmt.Sprintf("%s (%s)", r.id(), r.Type) }
