package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/baton/internal/testenv"
)

// What the broker does with a message: at the first time that it is sent, and
// with "ever" at every time. Anything else is confirmed.
var answersOfBroker = map[string]error{
	"confirm":            nil,
	"return":             ErrUnroutable,
	"return ever":        ErrUnroutable,
	"nack":               ErrRefused,
	"close":              ErrUnknown,
	"timeout":            ErrUnknown, // known later than a lease lasts
	"unreachable":        ErrUnreachable,
	"misconfigured":      ErrMisconfigured,
	"misconfigured ever": ErrMisconfigured,
}

// way is what happens to messages that a relay takes at once.
type way struct {
	broker []string // for each message
	order  []int    // in which the outcomes come
	when   string   // "at once": before Publish returns; "one by one", "together": after it
	relay  string   // what happens to the relay, and whether there is another
}

func (w way) String() string {
	return fmt.Sprintf("%s; outcomes in the order %v, %s; relay %s", strings.Join(w.broker, ", "), w.order, w.when, w.relay)
}

// everyWay goes through all outcomes of n messages in all orders, with all that
// can become of the relay meanwhile.
func everyWay(n int) iter.Seq[way] {
	kinds := make([]string, 0, len(answersOfBroker))
	for k := range answersOfBroker {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	orders := permutations(n)
	return func(yield func(way) bool) {
		broker := make([]string, n)
		var choose func(i int) bool
		choose = func(i int) bool {
			if i < n {
				for _, broker[i] = range kinds {
					if !choose(i + 1) {
						return false
					}
				}
				return true
			}
			for _, order := range orders {
				for _, when := range []string{"at once", "one by one", "together"} {
					for _, relay := range []string{"alone", "in order", "with another", "dies", "stalls", "stalls before it sends", "stalls alone", "cannot renew", "is stopped"} {
						if !yield(way{slices.Clone(broker), order, when, relay}) {
							return false
						}
					}
				}
			}
			return true
		}
		choose(0)
	}
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, p := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return all
}

// ledger is the broker and what it knows of each message: what the table says
// must follow from it.
type ledger struct {
	way
	table *model

	mu        sync.Mutex
	sent      map[string]int
	confirmed map[string]int
	denied    map[string]int // returned, refused, or misconfigured while alone
	once      sync.Once
	first     chan struct{} // closed when something is sent, or stalls before that
	wrong     []string
}

func (l *ledger) complain(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// settles is called before a statement settles r.
func (l *ledger) settles(sql string, r *modelRow, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case sql == publishedSQL && l.confirmed[r.ID] == 0:
		l.complain("%s becomes Published without a confirm", r.ID)
	case sql == deniedSQL && l.denied[r.ID] <= r.Attempts:
		l.complain("%s is charged its attempt %d, and the broker denied it %d times", r.ID, r.Attempts+1, l.denied[r.ID])
	case sql == failedSQL:
		l.complain("%s becomes Failed: %s", r.ID, text)
	}
}

// edge is one relay's way to the broker, a [Publisher].
type edge struct {
	*ledger
	instance string
	dead     bool // no outcome comes back
	flying   map[string]bool
	work     sync.WaitGroup
}

func (e *edge) Ready(ctx context.Context) error { return ctx.Err() }

func (e *edge) Publish(ctx context.Context, msgs []Message, settle func(int, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	outcomes := make([]error, len(msgs))
	late := make([]bool, len(msgs))
	for i, m := range msgs {
		if ctx.Err() != nil {
			outcomes[i] = ErrUnreachable
			continue
		}
		if r := e.row(m.ID); !strings.HasPrefix(r.LockedBy, e.instance) || r.LockedUntil.Before(time.Now()) {
			e.complain("%s sends %s, which is claimed by %q until %s", e.instance, m.ID, r.LockedBy, r.LockedUntil)
		} else if e.relay == "in order" && !e.isNext(m.ID) {
			e.complain("%s is sent before its turn", m.ID)
		}
		if e.flying[m.ID] {
			e.complain("%s sends %s a second time at once", e.instance, m.ID)
		}
		e.flying[m.ID] = true
		outcomes[i], late[i] = e.outcome(m.ID)
	}
	e.once.Do(func() { close(e.first) })
	sequence := slices.SortedFunc(slices.Values(indexes(len(msgs))), func(a, b int) int {
		return cmp.Compare(slices.Index(e.order, number(msgs[a].ID)), slices.Index(e.order, number(msgs[b].ID)))
	})
	if e.dead {
		return
	}
	tell := func(wait time.Duration, which ...int) {
		e.work.Add(1)
		time.AfterFunc(wait, func() {
			defer e.work.Done()
			for _, i := range which {
				e.land(msgs[i].ID)
				settle(i, outcomes[i])
			}
		})
	}
	var together []int
	for nth, i := range sequence {
		switch {
		case late[i]:
			tell(45*time.Second, i)
		case e.when == "at once":
			delete(e.flying, msgs[i].ID)
			settle(i, outcomes[i])
		case e.when == "one by one":
			tell(time.Duration(nth+1)*time.Millisecond, i)
		default:
			together = append(together, i)
		}
	}
	tell(time.Millisecond, together...)
}

func (e *edge) land(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.flying, id)
}

func (e *edge) row(id string) modelRow {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return *e.table.row(id)
}

func (e *edge) isNext(id string) bool {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return e.table.isNext(e.table.row(id))
}

// outcome is what the broker does with the message id now.
func (e *edge) outcome(id string) (err error, late bool) {
	e.sent[id]++
	kind := e.broker[number(id)]
	if e.sent[id] > 1 && !strings.HasSuffix(kind, " ever") {
		kind = "confirm"
	}
	switch err = answersOfBroker[kind]; {
	case err == nil:
		e.confirmed[id]++
	case errors.Is(err, ErrUnroutable), errors.Is(err, ErrRefused), errors.Is(err, ErrMisconfigured) && e.row(id).Lone > 0:
		e.denied[id]++
	}
	return err, kind == "timeout"
}

func number(id string) int { return int(id[0] - 'a') }

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// B01, B24, B25 and the outcomes of the design in every order: a row is Published
// only by a confirm, charged only for what the broker denied, never lost, and
// nobody sends what another has claimed, whatever becomes of the relay.
func TestEveryWayOut(t *testing.T) { // not parallel: others look at a real clock meanwhile
	for n, limit := range map[int]int{1: 500, 2: 500, 3: 500, 4: 500} {
		t.Run(fmt.Sprint(n, " in flight"), func(t *testing.T) {
			testenv.Explore(t, everyWay(n), limit, func(t *testing.T, w way) {
				synctest.Test(t, func(t *testing.T) { w.run(t) })
			})
		})
	}
}

const budget = 2

// started is a relay that runs.
type started struct {
	*Relay
	*edge
	cancel context.CancelFunc
	ended  chan struct{}
}

func (l *ledger) start(instance string, change ...func(*started)) *started {
	s := &started{edge: &edge{ledger: l, instance: instance, flying: map[string]bool{}}, ended: make(chan struct{})}
	s.Relay = &Relay{DB: &access{model: l.table}, Publisher: s.edge, Instance: instance, Budget: budget, Ordered: l.relay == "in order",
		Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() {
		defer close(s.ended)
		_ = s.Relay.Run(ctx)
	}()
	return s
}

// stop ends the relay and waits for it; Run must not need longer than it says.
func (s *started) stop(t *testing.T) {
	t.Helper()
	since := time.Now()
	s.cancel()
	<-s.ended
	if d := time.Since(since); d > 30*time.Second {
		t.Errorf("%s took %s to stop", s.instance, d)
	}
	s.work.Wait()
}

func (w way) run(t *testing.T) {
	table := &model{changed: make(chan struct{}, 1)}
	for i := range w.broker {
		r := &modelRow{ID: string(rune('a' + i)), Sequence: 1, Status: "Pending", Created: time.Now(), Due: time.Now()}
		if r.Aggregate = r.ID; w.relay == "in order" {
			r.Aggregate, r.Sequence = "the only one", int64(i+1)
		}
		table.rows = append(table.rows, r)
	}
	l := &ledger{way: w, table: table, sent: map[string]int{}, confirmed: map[string]int{}, denied: map[string]int{}, first: make(chan struct{})}
	table.before = l.settles

	relays := []*started{l.start("a", w.change(l))}
	if w.relay != "with another" {
		<-l.first
	}
	if w.relay == "is stopped" {
		relays[0].stop(t)
		w.checkStopped(t, l)
	}
	if !slices.Contains([]string{"alone", "in order", "stalls alone", "cannot renew"}, w.relay) {
		relays = append(relays, l.start("b"))
	}
	table.waitSent(10 * time.Minute)
	for _, s := range relays {
		s.stop(t)
	}
	for _, wrong := range l.wrong {
		t.Errorf("%s: %s", w, wrong)
	}
	// One that comes back before anybody else claims again what it still has in
	// hand, and goes on with it.
	lives := slices.Contains([]string{"alone", "in order", "with another", "stalls alone", "cannot renew"}, w.relay)
	if n := relays[0].Counts().LeaseLost.Load(); lives && n > 0 {
		t.Errorf("%s: %d claims lost, and nobody else was there", w, n)
	}
	blocked := false
	for i, r := range table.rows {
		kind := w.broker[i]
		ever := strings.HasSuffix(kind, " ever")
		switch {
		case blocked:
			if r.Status != "Pending" || l.sent[r.ID] > 0 {
				t.Errorf("%s: stands behind a Failed row and is %+v", w, *r)
			}
			continue
		case ever && (r.Status != "Failed" || r.Attempts != budget), !ever && r.Status != "Published":
			t.Errorf("%s: ends as %+v", w, *r)
		}
		if denied := l.denied[r.ID]; r.Attempts > denied || r.Attempts < denied && (lives || w.relay == "is stopped") {
			t.Errorf("%s: %s is charged %d attempts for %d denials", w, r.ID, r.Attempts, denied)
		}
		if lives && kind == "confirm" && l.sent[r.ID] != 1 {
			t.Errorf("%s: %s is sent %d times", w, r.ID, l.sent[r.ID])
		}
		blocked = ever && w.relay == "in order"
	}
}

// change makes the first relay die or stall. It is then as one that the database
// and the broker have lost, from its first step on; one that stalls comes back
// when its lease is over, with what it has heard meanwhile.
func (w way) change(l *ledger) func(*started) {
	back := time.Now().Add(40 * time.Second)
	gone := func() bool {
		select {
		case <-l.first:
			return w.relay == "dies" || strings.HasPrefix(w.relay, "stalls") && time.Now().Before(back)
		default:
			return false
		}
	}
	return func(s *started) {
		s.dead = w.relay == "dies"
		s.DB = &access{l.table, func(sql string) error {
			if gone() || w.relay == "cannot renew" && sql == renewSQL {
				return errors.New("no answer")
			}
			return nil
		}}
		if w.relay == "stalls before it sends" {
			s.Observe = func(_ context.Context, step string, _ []string) error {
				if step == StepClaimed {
					l.once.Do(func() { close(l.first) })
					<-time.After(time.Until(back))
				}
				return nil
			}
		}
	}
}

// waitSent returns when nothing is to be sent any more, or patience is over.
func (m *model) waitSent(patience time.Duration) {
	over := time.NewTimer(patience)
	defer over.Stop()
	for m.anyToSend() {
		select {
		case <-m.changed:
		case <-over.C:
			return
		}
	}
}

// anyToSend reports whether a row is still to be sent, and not behind a Failed
// one of its aggregate.
func (m *model) anyToSend() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.rows, func(r *modelRow) bool {
		blocked := slices.ContainsFunc(m.rows, func(p *modelRow) bool {
			return p.Aggregate == r.Aggregate && p.Sequence < r.Sequence && p.Status == "Failed"
		})
		return (r.Status == "Pending" || r.Status == "Processing") && !blocked
	})
}

// checkStopped: a relay that has ended leaves nothing claimed, and has written
// down what it was told in time.
func (w way) checkStopped(t *testing.T, l *ledger) {
	t.Helper()
	for i, r := range l.table.rows {
		want := "Pending"
		if w.broker[i] == "confirm" {
			want = "Published"
		}
		if r.Status != want || r.LockedBy != "" {
			t.Errorf("%s: the relay ends and leaves %+v", w, *r)
		}
	}
}
