// Package outbox sends messages about committed changes, and only about
// committed changes.
//
// [Enqueue] writes a message in the caller's transaction, so the message exists
// if and only if the change does. A [Relay] later hands every committed message
// to a [Publisher], at least once, from any number of processes. It needs
// PostgreSQL and nothing else: package rabbit has a Publisher for RabbitMQ, and
// another broker needs two methods.
//
// The life of a row:
//
//	       Enqueue + commit
//	              │
//	              ▼          claim (short transaction, lease, claim id)
//	┌────────► Pending ─────────────────────────► Processing
//	│             ▲                                │ │ │
//	│             │ unroutable, refused: attempt+1 │ │ │ confirmed
//	│             │ unknown: same id again, free   │ │ └──────────► Published ──► Prune
//	│             │ unreachable: as if not claimed │ │
//	│             └────────────────────────────────┘ │ budget spent, too old,
//	│                                                │ kills its relay
//	└──────────────── Requeue ◄──────── Failed ◄─────┘
//
// A Processing row whose lease has run out may be claimed by anybody: its relay
// died or stalled. Each claim has an id of its own, and a row is only ever
// settled by the claim that holds it, so a relay that wakes up late changes
// nothing.
//
// What it does not promise: that a message is sent once (consumers drop
// duplicates by event id, see package inbox), or, unless [Relay.Ordered] is
// set, that messages leave in the order they were committed.
//
// The table is in [Schema]. All times in it are the database's.
package outbox
