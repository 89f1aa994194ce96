// Package order is the order service: it takes orders over HTTP, tells the
// world about each by an event, and hears back from inventory.
//
// An order and its event are one transaction (place.go). From there on the
// event is on its way whatever happens to this process: the relay that [Run]
// starts sends it, and if not this one, the next. What inventory answers comes
// back as events, which answers.go applies to the orders, each once.
package order
