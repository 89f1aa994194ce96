// Package inventory is the inventory service: it hears of orders by events,
// reserves stock for each once, and answers by events of its own.
//
// The way of a batch of deliveries: handler.go decodes them and has package
// inbox run one transaction over those that are new; ledger.go decides, order by
// order, in memory, on what lock.go has locked; write.go stores what came out.
//
// The answers leave the way the orders came: through an outbox and the relay that
// [Run] starts.
package inventory
