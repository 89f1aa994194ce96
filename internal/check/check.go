// Package check holds what both databases and the broker say against what must
// be true, on a system at rest or a live one.
//
// Orders are read first and inventory right after, each as of one moment. What
// orders know of inventory must then be there; what inventory has of an order
// that was not there yet is asked for again. What was published and not heard is
// on its way as long as the broker has that many messages, and lost when it has
// not on a second look. So nothing that is merely under way is a violation, and
// nothing that is lost can pass for being under way once the broker is empty.
//
// Tables are read in order of their ids, a page at a time. What is kept in
// memory are the ids of what is in flight, dead or broken, never the history.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Querier is a pool, a connection or a transaction of pgx. A pool or a
// connection is read as of one moment; a transaction has to be such a moment.
type Querier interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Sources are where to look.
type Sources struct {
	Orders, Inventory Querier
	// Broker is where messages may be. Nil: it is not looked at, the report says
	// so, and what was published and not heard counts as being on its way.
	Broker *Broker
}

// Options say what else is known. The zero value is right for a system of which
// nothing is known.
type Options struct {
	// Copies are publishes seen by a [Tap] since before the first event, by message
	// id. Nil: not counted. There may be several of a message; of one that is
	// Published and that nobody has heard there must be one.
	Copies map[string]int
	// Deliveries are deliveries seen by a [Tap], by message id. Nil: not counted.
	Deliveries map[string]int
	// NoFaults says that nothing was disturbed: then each event was sent once,
	// no message was delivered more than four times, and no attempt was charged.
	NoFaults bool
	// Quiet says that all work is done and nobody is in the middle of anything:
	// then nothing is excused for being under way.
	Quiet bool
	// Except, when not nil, are the ids of all messages that cannot get through,
	// because somebody saw to that. Each has to be Failed or dead-lettered, not
	// both, and nothing else may be.
	Except []string

	// OutboxKeep and InboxKeep are for how long the services keep published rows
	// and ids; what is older may be gone. They default to the services' defaults,
	// 7 and 30 days.
	OutboxKeep, InboxKeep time.Duration
	// LeaseGrace is how long past its lease a claimed row may wait for its next
	// claim. Defaults to 30 seconds.
	LeaseGrace time.Duration
}

func (o Options) withDefaults() Options {
	const day = 24 * time.Hour
	o.OutboxKeep = cmp.Or(o.OutboxKeep, 7*day)
	o.InboxKeep = cmp.Or(o.InboxKeep, 30*day)
	o.LeaseGrace = cmp.Or(o.LeaseGrace, 30*time.Second)
	if o.Quiet {
		o.LeaseGrace = 0
	}
	return o
}

// Report is what a look found. Each order is in one of the counts Reserved,
// Rejected, Released, CancelledFirst, Dead, Failed and InFlight; those that are
// in none are the violation "accounting".
type Report struct {
	OK       bool `json:"ok"` // there is no violation
	Orders   int  `json:"orders"`
	Reserved int  `json:"reserved"`
	Rejected int  `json:"rejected"`
	Dead     int  `json:"dead"`      // their order.created is dead-lettered
	InFlight int  `json:"in_flight"` // inventory is yet to hear of them
	// Violations are the rules that are broken, in the order of [Rules].
	Violations []Violation `json:"violations"`

	Released       int `json:"released"`        // reserved, then cancelled
	CancelledFirst int `json:"cancelled_first"` // cancelled before inventory heard of them
	Failed         int `json:"failed"`          // their order.created is a Failed row
	// Messages counts those of both directions.
	Messages Messages `json:"messages"`
	// Broker is "checked", or why it was not, or not wholly.
	Broker string `json:"broker"`
	// Unsettled says in words what was still on its way when [RunSettled] had
	// waited for its end, or is empty.
	Unsettled string `json:"unsettled,omitempty"`
}

// Messages counts messages by where they are on their way.
type Messages struct {
	Unsent      int `json:"unsent"`       // committed, not yet Published
	Unheard     int `json:"unheard"`      // Published, on their way to the other service
	Failed      int `json:"failed"`       // rows given up, to be requeued or discarded
	DeadLetters int `json:"dead_letters"` // in the two final queues
}

// Quiet reports whether nothing is on its way in either direction.
func (r Report) Quiet() bool { return r.InFlight+r.Messages.Unsent+r.Messages.Unheard == 0 }

// Violation is a rule that is broken, and by what.
type Violation struct {
	Rule   string `json:"rule"`   // one of [Rules]
	Count  int    `json:"count"`  // how often it is broken
	Detail string `json:"detail"` // the first cases, in words

	// Up to [MostIDs] of the events and orders that break it.
	EventIDs []string `json:"event_ids"`
	OrderIDs []string `json:"order_ids"`
}

// MostIDs is how many ids a violation names.
const MostIDs = 20

// mostDetails is how many cases a violation tells in words.
const mostDetails = 3

// Run takes one look, and a second one at what the first has left open, which
// takes as long as the broker may be behind with its numbers. An error means
// that it could not look.
func Run(ctx context.Context, src Sources, opts Options) (Report, error) {
	l, err := newLook(ctx, src, opts)
	if err != nil {
		return Report{}, err
	}
	return l.conclude(), nil
}

// RunSettled waits with [Settle] until nothing is in flight, no longer than
// patience, and then looks with [Run]. A system that is still busy then is no
// violation, unless nothing has moved: that is "stuck".
func RunSettled(ctx context.Context, src Sources, opts Options, patience time.Duration) (Report, error) {
	err := Settle(ctx, src, patience)
	var unsettled *Unsettled
	if err != nil && !errors.As(err, &unsettled) {
		return Report{}, err
	}
	l, err := newLook(ctx, src, opts)
	if err != nil {
		return Report{}, err
	}
	if unsettled != nil && !l.Quiet() {
		l.Unsettled = unsettled.Error()
		if unsettled.Stuck != "" {
			l.violationUnderWay(stuck, l.Unsettled)
		}
	}
	return l.conclude(), nil
}

// Settle waits until nothing is in flight. What is lost is not in flight; it is
// for [Run] to find. When patience is over the error is an *[Unsettled]; any
// other means that it could not look at first, or not at last.
func Settle(ctx context.Context, src Sources, patience time.Duration) error {
	const first, slowest, slowestLook = 20 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin, err := readBacklog(ctx, src, nil)
	if err != nil {
		return err
	}
	last := begin
	// A look costs more than the backlog, and counts as a delivery of dead letters.
	var left Messages // by the last look
	var nextLook time.Time
	betweenLooks := first
	for wait := first; ; wait = min(2*wait, slowest) {
		if err == nil && !last.any() {
			if !time.Now().Before(nextLook) {
				var l *look
				if l, err = newLook(ctx, src, Options{}); err == nil {
					if l.Quiet() {
						return nil
					}
					left = l.Messages
					nextLook = time.Now().Add(betweenLooks)
					betweenLooks = min(2*betweenLooks, slowestLook)
				}
			}
			last.Messages = left
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			switch {
			case !errors.Is(ctx.Err(), context.DeadlineExceeded):
				return ctx.Err()
			case err != nil && !errors.Is(err, context.DeadlineExceeded):
				return err
			}
			last.Patience, last.Stuck = patience, last.stuckSince(begin)
			return &last.Unsettled
		}
		// Servers may come back within the patience.
		var now backlog
		if now, err = readBacklog(ctx, src, &begin); err == nil {
			last = now
		}
	}
}

// Unsettled is what was still on its way when patience was over.
type Unsettled struct {
	Patience time.Duration
	Messages Messages       // Unsent of both directions, and Unheard if that was all
	Queues   map[string]int // messages by queue, where there are any
	// Stuck says in words why waiting longer will not help: nobody sends, or
	// nobody consumes. It is empty if something has moved.
	Stuck string
}

func (u *Unsettled) Error() string {
	var parts []string
	if u.Messages.Unsent > 0 {
		parts = append(parts, fmt.Sprintf("%d not sent", u.Messages.Unsent))
	}
	if u.Messages.Unheard > 0 {
		parts = append(parts, fmt.Sprintf("%d sent and not handled", u.Messages.Unheard))
	}
	for _, name := range slices.Sorted(maps.Keys(u.Queues)) {
		parts = append(parts, fmt.Sprintf("%d in %s", u.Queues[name], name))
	}
	text := fmt.Sprintf("messages are still on their way after %s: %s", u.Patience, strings.Join(parts, ", "))
	if u.Stuck != "" {
		text += "; " + u.Stuck
	}
	return text
}
