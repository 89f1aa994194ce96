package outbox

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Schema is the DDL of the table that this package works on, for the current
// schema of the search path. Put it into a migration of your own.
//
//go:embed schema.sql
var Schema string

// Message is one event waiting to leave the database.
type Message struct {
	ID          string            // event id, 1–255 bytes; consumers drop duplicates by it
	Type        string            // event type, such as "order.created", 1–255 bytes
	AggregateID string            // the thing the event is about, such as an order id
	Sequence    int64             // 1, 2, 3, … within the aggregate
	OccurredAt  time.Time         // when the event happened; stored to the microsecond
	Headers     map[string]string // travel with the message, such as traceparent; up to 64 KiB, may be nil
	Payload     []byte            // JSON
}

// Enqueue stores msgs in tx. They exist if and only if tx commits.
//
// It takes a transaction rather than a pool so that a message cannot be stored
// apart from the change it describes. After the commit call [Relay.Wake] to
// have it sent at once. A message that breaks a rule of [Message] is an error
// and nothing is stored; an event id or an (aggregate, sequence) that exists
// is PostgreSQL's unique violation, and spoils tx.
func Enqueue(ctx context.Context, tx pgx.Tx, msgs ...Message) error {
	sql, args, err := insert(msgs)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("enqueue: %w", err)
	}
	return nil
}

// Queue adds the statement of [Enqueue] to a batch, for callers that send a
// whole transaction in one round trip.
//
// pgx runs a batch as one transaction of its own only when it holds no BEGIN
// or COMMIT; put nothing else between the change and its message.
func Queue(b *pgx.Batch, msgs ...Message) error {
	return QueueIf(b, "true", msgs...)
}

// QueueIf is [Queue] for a batch that may turn out to change nothing: a message
// is stored only where cond holds at that point of the batch. cond is SQL over
// the message m, for example
//
//	exists (select 1 from orders where orders.order_id = m.aggregate_id)
//
// It becomes part of the statement: write it as a constant, never from input.
func QueueIf(b *pgx.Batch, cond string, msgs ...Message) error {
	sql, args, err := insert(msgs)
	if err != nil {
		return err
	}
	b.Queue(sql+" where "+cond, args...)
	return nil
}

const insertSQL = `
insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, headers, occurred_at)
select m.event_id, m.aggregate_id, m.sequence, m.event_type, m.payload::jsonb, m.headers::jsonb, m.occurred_at
from `

const manyRowsSQL = insertSQL + `
  unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::timestamptz[])
  as m (event_id, aggregate_id, sequence, event_type, payload, headers, occurred_at)`

// The usual case has a form of its own: the planner takes an unnest for ten rows,
// and with a condition on each it would plan the statement anew every time, at
// half the cost of the whole transaction.
const oneRowSQL = insertSQL + `
  (select $1::text as event_id, $2::text as aggregate_id, $3::bigint as sequence, $4::text as event_type,
     $5::text as payload, $6::text as headers, $7::timestamptz as occurred_at) as m`

// insert returns the statement that stores msgs, up to a where, and its
// arguments.
func insert(msgs []Message) (sql string, args []any, err error) {
	n := len(msgs)
	ids, aggregates, sequences, types := make([]string, n), make([]string, n), make([]int64, n), make([]string, n)
	payloads, headers, times := make([]string, n), make([]string, n), make([]time.Time, n)
	for i, m := range msgs {
		if err := m.valid(); err != nil {
			return "", nil, err
		}
		h := "{}"
		if len(m.Headers) > 0 {
			b, err := json.Marshal(m.Headers)
			if err != nil {
				return "", nil, fmt.Errorf("enqueue %s: headers: %w", m.ID, err)
			}
			h = string(b)
		}
		ids[i], aggregates[i], sequences[i], types[i] = m.ID, m.AggregateID, m.Sequence, m.Type
		payloads[i], headers[i], times[i] = string(m.Payload), h, m.OccurredAt
	}
	if n == 1 {
		return oneRowSQL, []any{ids[0], aggregates[0], sequences[0], types[0], payloads[0], headers[0], times[0]}, nil
	}
	return manyRowsSQL, []any{ids, aggregates, sequences, types, payloads, headers, times}, nil
}

// maxHeaders is half of the frame that all headers of an AMQP message must fit
// into by default.
const maxHeaders = 64 << 10

// valid holds what a broker could not carry away from the table: 255 bytes is
// the longest short string of AMQP 0-9-1, and a longer id would be refused at
// every attempt.
func (m Message) valid() error {
	switch {
	case m.ID == "" || len(m.ID) > 255:
		return fmt.Errorf("enqueue: event id has %d bytes, want 1 to 255", len(m.ID))
	case m.Type == "" || len(m.Type) > 255:
		return fmt.Errorf("enqueue %s: type has %d bytes, want 1 to 255", m.ID, len(m.Type))
	case m.AggregateID == "" || len(m.AggregateID) > 255:
		return fmt.Errorf("enqueue %s: aggregate id has %d bytes, want 1 to 255", m.ID, len(m.AggregateID))
	case m.Sequence < 1:
		return fmt.Errorf("enqueue %s: sequence is %d, want 1 or more", m.ID, m.Sequence)
	case m.OccurredAt.IsZero():
		return fmt.Errorf("enqueue %s: no time of occurrence", m.ID)
	}
	size := 0
	for k, v := range m.Headers {
		if len(k) > 255 {
			return fmt.Errorf("enqueue %s: a header's name has %d bytes, want up to 255", m.ID, len(k))
		}
		size += len(k) + len(v)
	}
	if size > maxHeaders {
		return fmt.Errorf("enqueue %s: headers have %d bytes, want up to %d", m.ID, size, maxHeaders)
	}
	return nil
}
