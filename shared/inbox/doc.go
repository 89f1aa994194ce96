// Package inbox makes handling a message twice the same as handling it once.
//
// [Handle] runs the work of a message in a transaction that also records the
// message's id. A second delivery finds the id and does nothing. [HandleBatch]
// does so for many messages in one transaction and keeps a bad one from harming
// the others.
//
//	deliver ─► begin ─► insert ids ─┬─ new ──► work ─┬─► commit ─► ack
//	                                └─ known ────────┘
//
// The id is recorded before the work and committed with it. Recorded and
// committed first, a crash loses the work; looked up first and recorded later,
// two consumers both find nothing and both do it.
//
// What it does not cover: work outside the transaction, such as a call to
// another system (pass the event id on as its idempotency key, or enqueue a
// message with package outbox), and a message that arrives after its id was
// pruned.
//
// It needs PostgreSQL and nothing else. The tables are in [Schema].
package inbox
