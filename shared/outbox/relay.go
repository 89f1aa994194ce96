package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// The steps of a message's way out of the database, in order. A Publisher
// reports StepSent, the relay the others.
const (
	StepClaimed   = "relay.claimed"
	StepSent      = "relay.sent"
	StepConfirmed = "relay.confirmed"
	StepSettled   = "relay.settled"
)

// Relay moves committed messages from the outbox table to a Publisher. Any
// number of relays, in any number of processes, may share one table.
//
// DB and Publisher are required; every other field has a usable zero value. Do
// not change a field while Run runs.
type Relay struct {
	DB        DB
	Publisher Publisher

	// Instance begins every claim id, for people who read locked_by. Defaults
	// to "relay".
	Instance string
	// BatchSize is how many messages one claim takes. Defaults to 500.
	BatchSize int
	// InFlight is from how many unsettled messages on nothing more is claimed.
	// Defaults to 4000.
	InFlight int
	// Lease is how long a claim keeps others away unless it is renewed, which
	// happens at a third of it. Sending stops when the last renewal is older
	// than two thirds. Defaults to 30 seconds.
	Lease time.Duration
	// Poll is the pause after a claim that found nothing, unless Wake ends it.
	// Defaults to 1 second.
	Poll time.Duration
	// Budget is at how many attempts that the broker refused or could not route
	// a row is Failed. Defaults to 12.
	Budget int
	// Backoff is the wait after the first such attempt; it doubles up to
	// BackoffCap, give or take a fifth. They default to 1 second and 5 minutes.
	Backoff, BackoffCap time.Duration
	// Resend is the wait before a message of unknown outcome is sent again, give
	// or take a fifth. Defaults to 1 second.
	Resend time.Duration
	// PauseCap bounds the pauses in claiming while the broker refuses to be used
	// as it is (ErrMisconfigured) or the database does not answer; they start at
	// a tenth of a second. Defaults to 30 seconds.
	PauseCap time.Duration
	// MaxAge is how long after its commit a message may still be sent; an older
	// one is Failed, because consumers may have forgotten its id. Defaults to 7
	// days.
	MaxAge time.Duration
	// Drain is how long Run waits for outcomes after ctx is done. Defaults to 10
	// seconds.
	Drain time.Duration
	// Ordered makes the messages of one aggregate leave one at a time, in
	// sequence. A Failed message then holds back its aggregate until it is
	// requeued or discarded. Throughput falls to one message per aggregate and
	// round trip, and nothing is promised about the order of consumption.
	Ordered bool

	// Observe, when set, is called at each step with the ids that reached it. An
	// error makes the step fail: claimed rows are given back, confirmed ones
	// count as unknown. It must not block for longer than the step may take.
	Observe func(ctx context.Context, step string, ids []string) error
	// Logger defaults to slog.Default().
	Logger *slog.Logger

	wake     chan struct{}
	wakeOnce sync.Once
	counts   Counts
}

// Counts are what a relay has seen since it was made. They only grow.
type Counts struct {
	Claimed       atomic.Int64
	Published     atomic.Int64
	Unroutable    atomic.Int64
	Refused       atomic.Int64
	Unknown       atomic.Int64
	GivenBack     atomic.Int64
	Misconfigured atomic.Int64
	LeaseLost     atomic.Int64 // outcomes that came after somebody else had claimed the row
	Failed        atomic.Int64

	Claims    atomic.Int64 // claims that were answered, those that found nothing too
	ClaimTime atomic.Int64 // nanoseconds that they took together
}

// Counts returns the relay's counters. They are safe to read at any time.
func (r *Relay) Counts() *Counts { return &r.counts }

// Wake tells the relay that something was committed, so that it claims at once
// and not at its next poll. It never blocks and may be called before Run.
func (r *Relay) Wake() {
	select {
	case r.wakeup() <- struct{}{}:
	default:
	}
}

func (r *Relay) wakeup() chan struct{} {
	r.wakeOnce.Do(func() { r.wake = make(chan struct{}, 1) })
	return r.wake
}

// GivesUpAfter is how long a message is refused before it is Failed: the sum of
// the waits that Budget, Backoff and BackoffCap make, without jitter.
func (r *Relay) GivesUpAfter() time.Duration {
	budget, wait, limit := cmp.Or(r.Budget, 12), cmp.Or(r.Backoff, time.Second), cmp.Or(r.BackoffCap, 5*time.Minute)
	var sum time.Duration
	for range budget - 1 {
		sum += min(wait, limit)
		wait = min(wait*2, limit)
	}
	return sum
}

// worker is one Run of a relay: its settings with defaults filled in, and the
// rows in its hands.
//
// Three goroutines: the claimer takes rows and stays one batch ahead, the sender
// gives them to the publisher, the settler writes down what became of them and
// renews the leases of all that are in hand. Only the settler's statements touch
// a claimed row, so they cannot deadlock with each other.
type worker struct {
	*Relay
	BatchSize, InFlight, Budget                                       int
	Lease, Poll, Backoff, BackoffCap, Resend, PauseCap, MaxAge, Drain time.Duration
	Logger                                                            *slog.Logger

	sql           struct{ claim, suspect string }
	hand          hand
	outcomes      chan outcome
	misconfigured atomic.Int64  // channel closes in a row
	healed        chan struct{} // a confirm came after them
	renewedAt     time.Time     // last look at the leases; the settler's own
	from          place         // where the next claim begins; the claimer's own,
	sweepAt       time.Time     // as is when one begins at the beginning again
}

// outcome is what became of a row in hand.
type outcome struct {
	*row
	err error
}

var (
	errTooOld = errors.New("too old to send: consumers may have forgotten its id")
	errKiller = fmt.Errorf("kills its relay: %d claims made for it alone ended without any outcome", killerAfter)
)

// Run relays until ctx is done, and then returns nil once what is in flight is
// settled or Drain has passed. It retries whatever can be retried, so another
// error means that the relay is set up wrongly. Run it once per Relay at a time.
func (r *Relay) Run(ctx context.Context) error {
	if r.DB == nil || r.Publisher == nil {
		return errors.New("outbox: a relay needs a DB and a Publisher")
	}
	w := &worker{
		Relay:      r,
		BatchSize:  cmp.Or(r.BatchSize, 500),
		InFlight:   cmp.Or(r.InFlight, 4000),
		Budget:     cmp.Or(r.Budget, 12),
		Lease:      cmp.Or(r.Lease, 30*time.Second),
		Poll:       cmp.Or(r.Poll, time.Second),
		Backoff:    cmp.Or(r.Backoff, time.Second),
		BackoffCap: cmp.Or(r.BackoffCap, 5*time.Minute),
		Resend:     cmp.Or(r.Resend, time.Second),
		PauseCap:   cmp.Or(r.PauseCap, 30*time.Second),
		MaxAge:     cmp.Or(r.MaxAge, 7*24*time.Hour),
		Drain:      cmp.Or(r.Drain, 10*time.Second),
		Logger:     cmp.Or(r.Logger, slog.Default()),
	}
	order := ""
	if r.Ordered {
		order = inOrder
	}
	w.sql.claim, w.sql.suspect = fmt.Sprintf(claimSQL, order), fmt.Sprintf(suspectSQL, order)
	w.hand.rows = make(map[string]*row)
	w.hand.changed = make(chan struct{})
	// Every row in hand has one outcome at most, so that reporting it never
	// blocks the publisher's reader.
	w.healed = make(chan struct{}, 1)
	w.outcomes = make(chan outcome, w.InFlight+3*w.BatchSize)

	w.Logger.Info("relay started", "batch", w.BatchSize, "in_flight", w.InFlight, "lease", w.Lease.String(),
		"budget", w.Budget, "gives_up_after", r.GivesUpAfter().String())

	batches := make(chan []*row) // unbuffered: one batch in it is one batch claimed ahead
	var out sync.WaitGroup
	out.Go(func() { defer close(batches); w.claimLoop(ctx, batches) })
	out.Go(func() {
		for rows := range batches {
			w.send(ctx, rows)
		}
	})

	// What was sent is settled even though ctx is done.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var settler sync.WaitGroup
	settler.Go(func() { w.settleLoop(work) })

	drain, cancel := context.WithCancel(work)
	defer context.AfterFunc(ctx, func() { time.AfterFunc(w.Drain, cancel) })()

	out.Wait()
	_ = w.hand.waitEmpty(drain) // whether it is empty is asked below
	cancel()
	stop()
	settler.Wait()
	w.leave()
	w.Logger.Info("relay stopped")
	return nil
}

// leave settles as unknown what had no outcome when Run ends: it was not the
// message that ended it. Where even that cannot be written, the leases run out.
func (w *worker) leave() {
	left := w.hand.rest()
	if len(left) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	w.Logger.Warn("relay stops with messages in flight, they will be sent again", "messages", len(left))
	w.write(ctx, unknownSQL, left, w.Resend)
}

// trust is for how long a claim may be believed after it was made or renewed:
// less than the lease, so that a message in the hands of the publisher is gone
// before somebody else may claim it.
func (w *worker) trust() time.Duration { return w.Lease * 2 / 3 }

func (w *worker) newClaimID() string {
	return cmp.Or(w.Instance, "relay") + ":" + uuid.NewString()
}

// claimLoop claims while there is room and a broker, and hands over batch by
// batch.
func (w *worker) claimLoop(ctx context.Context, batches chan<- []*row) {
	var suspectsSeen time.Time
	failures := 0
	for w.Publisher.Ready(ctx) == nil {
		w.waitWhileMisconfigured(ctx)
		if w.hand.waitBelow(ctx, w.InFlight) != nil {
			return
		}
		begin := time.Now()
		rows, err := w.claim(ctx, w.BatchSize)
		full, next := len(rows) == w.BatchSize, begin.Add(min(5*time.Since(begin), mostPace))
		if err == nil && time.Since(suspectsSeen) >= w.Poll {
			err = w.relaySuspects(ctx, batches, &rows)
			suspectsSeen = time.Now()
		}
		switch {
		case ctx.Err() != nil:
			w.giveBack(rows)
			return
		case err != nil:
			w.giveBack(rows)
			failures++
			if failures == 1 {
				w.Logger.Warn("relay cannot claim, trying again", "err", err)
			}
			if !wait(ctx, w.pause(failures)) {
				return
			}
			continue
		case failures > 0:
			w.Logger.Info("relay claims again", "failures", failures)
			failures = 0
		}
		if !w.handOver(ctx, batches, rows) {
			return
		}
		if !full {
			w.waitForWork(ctx)
			wait(ctx, time.Until(next))
		}
	}
}

// A claim costs nearly as much for one row as for many. So one that did not fill
// its batch is not followed at once by another, but after as long as five such
// claims take: the busier the database is, the more the next one finds. mostPace
// bounds that. The first message after a pause does not wait.
const mostPace = 20 * time.Millisecond

// relaySuspects sends rows that brought no answer before, each with nothing
// else in flight, for no longer than a poll interval: other rows want to leave
// too. first was claimed already and goes ahead of them.
func (w *worker) relaySuspects(ctx context.Context, batches chan<- []*row, first *[]*row) error {
	until := time.Now().Add(w.Poll)
	for time.Now().Before(until) && w.Publisher.Ready(ctx) == nil {
		var id string
		if found, err := w.suspect(ctx, &id); err != nil || !found {
			return err
		}
		if !w.handOver(ctx, batches, *first) {
			*first = nil
			return nil
		}
		*first = nil
		// Alone means alone: what is still in flight must not share its fate.
		if w.hand.waitEmpty(ctx) != nil {
			return nil
		}
		rows, err := w.claimAlone(ctx, id)
		if err != nil || !w.handOver(ctx, batches, rows) {
			return err
		}
		if w.hand.waitEmpty(ctx) != nil {
			return nil
		}
	}
	return nil
}

// handOver passes claimed rows on to the sender, and gives them back when ctx
// is done first.
func (w *worker) handOver(ctx context.Context, batches chan<- []*row, rows []*row) bool {
	if len(rows) == 0 {
		return true
	}
	w.counts.Claimed.Add(int64(len(rows)))
	if rows = w.hand.add(rows); len(rows) == 0 {
		return true
	}
	if rows[0].killer { // claimed alone; nothing more is done with it
		w.outcomes <- outcome{rows[0], errKiller}
		return true
	}
	if err := w.observe(ctx, StepClaimed, rows); err != nil {
		w.report(rows, fmt.Errorf("%w: %w", ErrUnreachable, err))
		return true
	}
	select {
	case batches <- rows:
		return true
	case <-ctx.Done():
		w.report(rows, ErrUnreachable)
		return false
	}
}

// giveBack reports rows that were claimed and not handed over.
func (w *worker) giveBack(rows []*row) {
	w.report(w.hand.add(rows), ErrUnreachable)
}

func (w *worker) report(rows []*row, err error) {
	for _, r := range rows {
		w.outcomes <- outcome{r, err}
	}
}

// sendAtOnce bounds how many messages go out on one look at the clock.
const sendAtOnce = 100

// send gives rows to the publisher, as long as their claims can be trusted.
func (w *worker) send(ctx context.Context, rows []*row) {
	for chunk := range slices.Chunk(rows, sendAtOnce) {
		deadline := time.Now().Add(w.Lease)
		ready := make([]*row, 0, len(chunk))
		for _, r := range chunk {
			switch trusted, lost := w.hand.check(r); {
			case lost:
				w.outcomes <- outcome{r, fmt.Errorf("%w: the lease was lost before it was sent", ErrUnreachable)}
			case r.tooOld:
				w.outcomes <- outcome{r, errTooOld}
			case r.unreadable != nil:
				w.outcomes <- outcome{r, fmt.Errorf("%w: headers: %w", ErrRefused, r.unreadable)}
			default:
				ready = append(ready, r)
				if trusted.Before(deadline) {
					deadline = trusted
				}
			}
		}
		if len(ready) == 0 {
			continue
		}
		msgs := make([]Message, len(ready))
		for i, r := range ready {
			msgs[i] = r.Message
		}
		sending, cancel := context.WithDeadline(ctx, deadline)
		w.Publisher.Publish(sending, msgs, func(i int, err error) { w.outcomes <- outcome{ready[i], err} })
		cancel()
	}
}

// waitWhileMisconfigured lengthens the pause between claims with each time in a
// row that the broker closed the channel, until it confirms one message.
func (w *worker) waitWhileMisconfigured(ctx context.Context) {
	closes := w.misconfigured.Load()
	if closes == 0 {
		return
	}
	pause := time.NewTimer(w.pause(int(closes)))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-w.healed:
	case <-ctx.Done():
	}
}

// waitForWork pauses until something was committed or it is time to poll.
func (w *worker) waitForWork(ctx context.Context) {
	poll := time.NewTimer(w.Poll)
	defer poll.Stop()
	select {
	case <-w.wakeup():
	case <-poll.C:
	case <-ctx.Done():
	}
}

// pause doubles with every failure, from a tenth of a second to PauseCap.
func (w *worker) pause(failures int) time.Duration {
	return min(100*time.Millisecond<<min(failures-1, 20), w.PauseCap)
}

// wait reports whether d passed before ctx was done.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *worker) observe(ctx context.Context, step string, rows []*row) error {
	if w.Observe == nil || len(rows) == 0 {
		return nil
	}
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
	}
	return w.Observe(ctx, step, ids)
}
