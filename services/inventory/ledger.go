package inventory

import (
	"slices"

	"example.com/baton/shared/events"
)

// State is what became of an order.
type State string

// The states. An order that was never heard of has none.
const (
	Reserved       State = "reserved"
	Rejected       State = "rejected"
	Released       State = "released"        // reserved, then cancelled
	CancelledFirst State = "cancelled_first" // cancelled before it was heard of; reserves nothing ever
)

// outcome is what one event did.
type outcome string

const (
	reserved               = outcome(Reserved)
	rejected               = outcome(Rejected)
	released               = outcome(Released)
	cancelledFirst         = outcome(CancelledFirst)
	repeated       outcome = "repeated"  // another event had decided the order before
	duplicate      outcome = "duplicate" // the same event again
	tooOld         outcome = "too_old"   // not handled
)

// order is what the ledger knows of an order. Its row exists and is locked.
type order struct {
	id      string
	state   State
	reason  string // why it was rejected
	cancel  string // the order.cancelled that released it
	lines   []line // what it holds or, once released, held
	created string // the order.created that the lines were reserved for

	stored State // what its row says
	booked bool  // its lines have rows
	trace  string
}

// line is what an order holds of one sku.
type line struct {
	sku      string
	quantity int64
}

// ledger decides what a batch of events does to orders and stock. It works on
// what one transaction has locked, and gathers what that transaction is to
// write, so that a sku which every order wants costs one row update per batch.
type ledger struct {
	orders    map[string]*order
	all       []*order         // the same in the order of arrival
	available map[string]int64 // by sku, for those that exist
	change    map[string]int64 // of what is reserved, by sku
	answers   []*order         // reserved or rejected here, in the order of arrival
}

// enter books one event. The first event of an order decides: a created one
// reserves it whole or not at all, a cancelled one keeps it from ever being
// reserved. After that only cancelling what is reserved changes anything.
func (l *ledger) enter(e incoming) outcome {
	o := l.orders[e.OrderID]
	switch {
	case e.EventType == events.OrderCreated && o.state == "":
		o.trace = e.trace
		l.create(o, e)
	case e.EventType == events.OrderCancelled && o.state == "":
		o.state = CancelledFirst
	case e.EventType == events.OrderCancelled && o.state == Reserved:
		l.release(o, e.EventID)
	default:
		return repeated
	}
	return outcome(o.state)
}

func (l *ledger) create(o *order, e incoming) {
	wanted := sum(e.Items)
	o.state = Reserved
	for _, w := range wanted {
		switch free, known := l.available[w.sku]; {
		case !known:
			o.state, o.reason = Rejected, "unknown sku: "+w.sku
		case free < w.quantity:
			o.state, o.reason = Rejected, "out of stock: "+w.sku
		}
		if o.state == Rejected {
			break
		}
	}
	if o.state == Reserved {
		o.lines, o.created = wanted, e.EventID
		for _, w := range wanted {
			l.move(w.sku, w.quantity)
		}
	}
	l.answers = append(l.answers, o)
}

func (l *ledger) release(o *order, cancel string) {
	o.state, o.cancel = Released, cancel
	for _, held := range o.lines {
		l.move(held.sku, -held.quantity)
	}
}

func (l *ledger) move(sku string, quantity int64) {
	l.available[sku] -= quantity
	l.change[sku] += quantity
}

// sum adds up the lines of each sku: two lines of three need six.
func sum(items []events.Item) []line {
	lines := make([]line, 0, len(items))
	for _, it := range items {
		i := slices.IndexFunc(lines, func(l line) bool { return l.sku == it.SKU })
		if i < 0 {
			lines = append(lines, line{sku: it.SKU})
			i = len(lines) - 1
		}
		lines[i].quantity += it.Quantity
	}
	return lines
}
