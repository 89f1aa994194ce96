package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// way is one direction: what one service sends and the other hears.
type way struct {
	from, to string // services
	what     string // what they send
	queue    string
	lost     string // the rule for what got lost
}

var (
	forth = way{"order", "inventory", "event", "inventory.order-events", eventLost}
	back  = way{"inventory", "order", "answer", "order.inventory-events", answerLost}
)

// look is what one look has found so far.
type look struct {
	Report
	src  Sources
	opts Options

	began      time.Time // after the moments of both databases, by this process's monotonic clock
	broken     map[string]*Violation
	underWay   Violation                     // only the ids
	unheard    map[string]map[string]unheard // by queue and event id: Published, and not in the inbox
	dead       map[string]deadLetters        // by queue
	failed     []string                      // event ids of Failed rows
	unknown    map[string][]string           // by the service that never sent them, event ids
	sentBefore map[string]bool               // of the ids in opts.Copies: in an outbox
	surprising map[string]surprise           // orders of which inventory knows more than the orders did, by order id
	unanswered []string                      // orders whose answer has left inventory's outbox for good
}

// unheard is a message that was sent and that its receiver does not know.
type unheard struct {
	orderID   string
	age       time.Duration // since it was Published
	undecided bool          // the order stands or falls with it: it counts as in flight
}

// surprise is what inventory has of an order that does not, or did not yet, fit
// the order.
type surprise struct {
	state   string // of the order at inventory
	eventID string // by which inventory has it
}

func newLook(ctx context.Context, src Sources, opts Options) (*look, error) {
	l := &look{
		src: src, opts: opts.withDefaults(),
		broken:     make(map[string]*Violation),
		underWay:   Violation{EventIDs: []string{}, OrderIDs: []string{}},
		unheard:    map[string]map[string]unheard{forth.queue: {}, back.queue: {}},
		dead:       make(map[string]deadLetters),
		unknown:    make(map[string][]string),
		sentBefore: make(map[string]bool),
		surprising: make(map[string]surprise),
	}
	if err := l.readDead(ctx, forth, back); err != nil {
		return nil, err
	}
	err := readSnapshot(ctx, src.Orders, "order", func(o *snapshot) error {
		return readSnapshot(ctx, src.Inventory, "inventory", func(i *snapshot) error {
			l.began = time.Now()
			l.events(ctx, o, i, forth)
			l.events(ctx, i, o, back)
			l.orders(ctx, o, i)
			l.tables(ctx, o, i)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	l.deliveries()
	for _, step := range []func(context.Context) error{l.resolveUnknown, l.resolveCopies, l.resolveSurprising, l.resolveUnheard, l.resolveUnanswered, l.exceptions} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// violation notes that a rule is broken. The ids may be empty.
func (l *look) violation(rule, eventID, orderID, format string, args ...any) {
	v := l.broken[rule]
	if v == nil {
		v = &Violation{Rule: rule, EventIDs: []string{}, OrderIDs: []string{}}
		l.broken[rule] = v
	}
	v.Count++
	if v.Count <= mostDetails {
		if v.Detail != "" {
			v.Detail += "; "
		}
		v.Detail += fmt.Sprintf(format, args...)
	}
	v.EventIDs = addID(v.EventIDs, eventID)
	v.OrderIDs = addID(v.OrderIDs, orderID)
}

func addID(ids []string, id string) []string {
	if id == "" || len(ids) == MostIDs || slices.Contains(ids, id) {
		return ids
	}
	return append(ids, id)
}

// violationUnderWay notes that what is on its way breaks a rule.
func (l *look) violationUnderWay(rule, detail string) {
	l.violation(rule, "", "", "%s", detail)
	l.broken[rule].EventIDs, l.broken[rule].OrderIDs = l.underWay.EventIDs, l.underWay.OrderIDs
}

// isUnderWay remembers some of what is on its way.
func (l *look) isUnderWay(eventID, orderID string) {
	l.underWay.EventIDs = addID(l.underWay.EventIDs, eventID)
	l.underWay.OrderIDs = addID(l.underWay.OrderIDs, orderID)
}

// conclude closes the books.
func (l *look) conclude() Report {
	known := l.Reserved + l.Rejected + l.Released + l.CancelledFirst + l.Dead + l.Failed + l.InFlight
	if v := l.broken[accounting]; v != nil {
		v.Detail = fmt.Sprintf("%d orders were accepted and %d are accounted for: ", l.Orders, known) + v.Detail
	}
	if l.opts.Quiet && !l.Quiet() {
		l.violationUnderWay(notQuiet, fmt.Sprintf("%d orders are in flight, %d messages not sent, %d sent and not handled",
			l.InFlight, l.Messages.Unsent, l.Messages.Unheard))
	}
	l.Violations = []Violation{}
	for _, rule := range Rules() {
		if v := l.broken[rule.Name]; v != nil {
			l.Violations = append(l.Violations, *v)
		}
	}
	l.OK = len(l.Violations) == 0
	return l.Report
}

// deliveries holds what a tap has seen of consumers against the retries.
func (l *look) deliveries() {
	const most = 4 // the first and three retries
	for _, id := range slices.Sorted(maps.Keys(l.opts.Deliveries)) {
		if n := l.opts.Deliveries[id]; l.opts.NoFaults && n > most {
			l.violation(tooManyDeliveries, id, "", "%s was delivered %d times", id, n)
		}
	}
}

// exceptions holds what could not get through against where it may end.
func (l *look) exceptions(ctx context.Context) error {
	if l.opts.Except == nil {
		return nil
	}
	dead := make(map[string]bool)
	for _, d := range l.dead {
		maps.Copy(dead, d.ids)
	}
	excepted := make(map[string]bool)
	for _, id := range l.opts.Except {
		excepted[id] = true
		switch failed := slices.Contains(l.failed, id); {
		case failed == dead[id]:
			l.violation(exception, id, "", "%s, which could not get through, is Failed: %t, dead-lettered: %t; want one of both", id, failed, dead[id])
		case dead[id]:
			heard, err := l.heard(ctx, []string{id})
			if err != nil {
				return err
			}
			if heard[id] {
				l.violation(exception, id, "", "%s is dead-lettered and was handled all the same", id)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(dead)) {
		if !excepted[id] {
			l.violation(exception, id, "", "%s is dead-lettered", id)
		}
	}
	for _, id := range l.failed {
		if !excepted[id] {
			l.violation(exception, id, "", "%s is Failed", id)
		}
	}
	return nil
}

const heardSQL = `select event_id from inbox_messages where event_id = any ($1)`

// heard says which of the ids are in either inbox now.
func (l *look) heard(ctx context.Context, ids []string) (map[string]bool, error) {
	found := make(map[string]bool)
	for _, db := range []Querier{l.src.Orders, l.src.Inventory} {
		if err := lookUp(ctx, db, heardSQL, ids, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}
