// Package rabbit publishes to RabbitMQ with confirms and returns, and consumes
// from it with bounded retries and a final dead-letter queue. It is the only
// code that knows AMQP.
//
// # Publishing
//
// [Publisher] keeps many messages in flight on one channel and tells for each
// what became of it: confirmed, returned as unroutable, refused, or unknown. It
// is the publisher of an outbox relay.
//
// # Consuming
//
// [Consumer] hands deliveries to a handler in batches and settles each by what
// the handler says of it:
//
//	                    ┌──────────────── after RetryTTL, through <owner>.return ─────┐
//	                    ▼                                                             │
//	<source> ──► <queue> ──► Handle ─┬─ nil ───────────────► ack                      │
//	                    ▲            ├─ Unavailable ───────► held, tried again        │
//	                    │ crash,     ├─ other error ───────► nack ─► <owner>.retry ─► <queue>.retry
//	                    └ connection ├─ after Retries ─┐
//	                      lost       └─ Permanent ─────┴─► <owner>.dlx ─► <queue>.dlq
//	                                                       (confirmed first, then acked)
//
// All names come from [Queue].
//
// # Sessions
//
// A session is one connection and one channel. Whatever goes wrong with either,
// the session is thrown away whole and a new one made: what was in flight is then
// unknown, and nothing of the old session is used again. The client library's
// own recovery is off, because it would hide exactly that.
package rabbit
