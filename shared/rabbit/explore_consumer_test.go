package rabbit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/testenv"
)

// What a handler makes of a message. Whatever it is, one that was done once is a
// duplicate from then on, as the inbox has it.
const (
	fine      = "fine"
	failsOnce = "fails once"
	forgery   = "forged, fails once" // carries an x-death that no broker wrote
	failsEver = "fails always"
	malformed = "permanent"
	outage    = "outage"
)

var fates = []string{fine, failsOnce, forgery, failsEver, malformed, outage}

// course is what happens to the deliveries of one queue.
type course struct {
	fates []string
	batch int
	// disturbed is what happens in the middle of the nth call of the handler, or,
	// if late, when its verdicts were answered.
	disturbed string
	call      int
	late      bool
	final     string // what becomes of the first copy that is forwarded
}

func (c course) String() string {
	return fmt.Sprintf("%s; batch %d; %q at call %d (late: %t); first copy: %s",
		strings.Join(c.fates, ", "), c.batch, c.disturbed, c.call, c.late, c.final)
}

// everyCourse goes through all fates of n messages, each with every disturbance
// at every moment.
func everyCourse(n int) iter.Seq[course] {
	return func(yield func(course) bool) {
		c := course{fates: make([]string, n)}
		forwards := func(f string) bool { return f == forgery || f == failsEver || f == malformed }
		moments := func() bool {
			finals := []string{"confirmed"}
			if slices.ContainsFunc(c.fates, forwards) {
				finals = append(finals, "returned", "refused", "cut")
			}
			for _, c.batch = range []int{1, 2, 250}[:min(n, 3)] {
				for _, c.final = range finals {
					for _, c.disturbed = range []string{"", "stopped", "cancelled", "channel closed", "connection closed", "cut"} {
						for _, c.call = range []int{1, 2, 3} {
							for _, c.late = range []bool{false, true} {
								d := c
								d.fates = slices.Clone(c.fates)
								if !yield(d) {
									return false
								}
								if c.disturbed == "" {
									break
								}
							}
							if c.disturbed == "" {
								break
							}
						}
					}
				}
			}
			return true
		}
		var choose func(i int) bool
		choose = func(i int) bool {
			if i == n {
				return moments()
			}
			for _, c.fates[i] = range fates {
				if !choose(i + 1) {
					return false
				}
			}
			return true
		}
		choose(0)
	}
}

// letter is a message in the queue, or a copy of one.
type letter struct {
	id      string
	forged  bool
	rounds  int // through the retry queue
	crashes int
	state   string // ready, out, waiting, gone
	on      *link  // where it is out
	tag     uint64
}

// post is the broker's side of a course: one queue with the way round, and the
// final queue. It knows what may be acknowledged, and writes down whatever
// should not be.
type post struct {
	*wire
	q Queue
	course

	mu        sync.Mutex
	letters   []*letter
	consumer  *link
	tags      map[*link]uint64
	calls     int
	handled   map[string]int
	committed map[string]int
	copied    map[string]int // confirmed copies, in the final or the retry queue
	forwards  int
	stop      func()
	left      chan struct{} // has room for one: a letter has gone
	wrong     []string
}

func (p *post) complain(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

func (p *post) consumed(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.consumer = l
	p.deliverReady()
}

func (p *post) deliverReady() {
	if p.consumer == nil {
		return
	}
	for _, m := range p.letters {
		if m.state != "ready" {
			continue
		}
		p.tags[p.consumer]++
		m.state, m.on, m.tag = "out", p.consumer, p.tags[p.consumer]
		headers, exchange := amqp.Table{}, p.q.Source
		if m.crashes > 0 {
			headers["x-delivery-count"] = int64(m.crashes)
		}
		if m.rounds > 0 {
			exchange = p.q.returnExchange()
			headers["x-death"] = []any{
				amqp.Table{"queue": p.q.RetryName(), "reason": "expired", "count": int64(m.rounds)},
				amqp.Table{"queue": p.q.Name, "reason": "rejected", "count": int64(m.rounds)},
			}
		} else if m.forged {
			headers["x-death"] = []any{amqp.Table{"queue": p.q.Name, "reason": "rejected", "count": int64(99)}}
		}
		body := []byte(m.id)
		p.consumer.deliver(m.tag, m.crashes > 0, exchange, "order.created",
			properties(m.id, "order.created", packed{}.table(headers), len(body)), body)
	}
}

func (p *post) settled(l *link, s settlement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := false
	for _, m := range p.letters {
		if m.state != "out" || m.on != l || m.tag != s.tag && (!s.multiple || m.tag > s.tag) {
			continue
		}
		found = true
		if !s.nack {
			if p.committed[m.id] == 0 && p.copied[m.id] == 0 {
				p.complain("%s is acked (%+v), and is neither done nor anywhere else", m.id, s)
			}
			m.state = "gone"
			select {
			case p.left <- struct{}{}:
			default:
			}
			continue
		}
		if m.forged {
			p.complain("%s is nacked with its forged x-death", m.id)
		}
		m.rounds++
		p.wait(m)
	}
	if !found || s.requeue || s.nack && s.multiple {
		p.complain("%+v", s)
	}
}

// wait leaves m in the retry queue.
func (p *post) wait(m *letter) {
	m.state = "waiting"
	time.AfterFunc(p.q.RetryTTL, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		m.state = "ready"
		p.deliverReady()
	})
}

func (p *post) gone(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.consumer == l {
		p.consumer = nil
	}
	for _, m := range p.letters {
		if m.state == "out" && m.on == l {
			m.state = "ready"
			m.crashes++
		}
	}
	p.deliverReady()
}

// forwarded takes a copy.
func (p *post) forwarded(l *link, c published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forwards++
	switch first := p.forwards == 1; {
	case first && p.final == "returned":
		l.giveBack(c)
		l.ack(c.tag, false)
		return
	case first && p.final == "refused":
		l.nack(c.tag, false)
		return
	case first && p.final == "cut":
		l.hangUp()
	default:
		p.copied[c.id]++
		l.ack(c.tag, false)
	}
	if c.exchange == p.q.retryExchange() {
		m := &letter{id: c.id, rounds: 1}
		p.letters = append(p.letters, m)
		p.wait(m)
	}
}

// handle is the consumer's handler.
func (p *post) handle(_ context.Context, batch []Delivery) []error {
	p.mu.Lock()
	p.calls++
	if p.calls == p.call {
		after := 5 * time.Millisecond
		if p.late {
			after = 12 * time.Millisecond
		}
		l := p.consumer
		time.AfterFunc(after, func() { p.disturb(l) })
	}
	p.mu.Unlock()
	<-time.After(10 * time.Millisecond) // the work

	p.mu.Lock()
	defer p.mu.Unlock()
	verdicts := make([]error, len(batch))
	for i, d := range batch {
		p.handled[d.MessageID]++
		nth := p.handled[d.MessageID]
		switch fate := p.fates[d.MessageID[0]-'a']; {
		case fate == malformed:
			verdicts[i] = Permanent(errBad)
		case fate == failsEver, nth == 1 && (fate == failsOnce || fate == forgery):
			verdicts[i] = errBad
		case nth == 1 && fate == outage:
			verdicts[i] = Unavailable(errors.New("no database"))
		default:
			p.committed[d.MessageID]++
		}
	}
	return verdicts
}

func (p *post) disturb(l *link) {
	switch p.disturbed {
	case "stopped":
		p.stop()
	case "cancelled":
		l.cancelConsumer()
	case "channel closed":
		l.closeChannel(amqp.PreconditionFailed, "PRECONDITION_FAILED - delivery acknowledgement timed out")
	case "connection closed":
		l.closeConnection(amqp.ConnectionForced, "CONNECTION_FORCED")
	case "cut":
		l.hangUp()
	}
}

// waitDone returns when nothing is left to do, the consumer is told to stop, or
// patience is over.
func (p *post) waitDone(stopped context.Context, patience time.Duration) {
	over := time.NewTimer(patience)
	defer over.Stop()
	for len(p.open()) > 0 {
		select {
		case <-p.left:
		case <-stopped.Done():
			return
		case <-over.C:
			return
		}
	}
}

// open returns the ids of what is still to do.
func (p *post) open() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.letters {
		if m.state != "gone" {
			ids = append(ids, m.id+" "+m.state)
		}
	}
	return ids
}

// B37, B38, B40, B50 in every order: a delivery is acknowledged only when the
// handler has done it or a confirmed copy of it is elsewhere, nothing is lost,
// and nothing is blamed, whatever happens to the session.
func TestEveryCourseOfDeliveries(t *testing.T) { // not parallel: others look at a real clock meanwhile
	for n, limit := range map[int]int{1: 500, 2: 300, 3: 300, 4: 300} {
		t.Run(fmt.Sprint(n, " in hand"), func(t *testing.T) {
			testenv.Explore(t, everyCourse(n), limit, func(t *testing.T, c course) {
				synctest.Test(t, func(t *testing.T) { c.run(t) })
			})
		})
	}
}

func (c course) run(t *testing.T) {
	q := testQueue()
	q.Retries = 1
	p := &post{wire: &wire{}, q: q, course: c, tags: map[*link]uint64{}, left: make(chan struct{}, 1),
		handled: map[string]int{}, committed: map[string]int{}, copied: map[string]int{}}
	p.onConsume, p.onSettle, p.onGone, p.onPublish = p.consumed, p.settled, p.gone, p.forwarded
	for i, fate := range c.fates {
		p.letters = append(p.letters, &letter{id: string(rune('a' + i)), forged: fate == forgery, state: "ready"})
	}
	consumer := &Consumer{URL: "amqp://guest:guest@broker/", Queue: q, Batch: c.batch, Handle: p.handle, Logger: silent, connect: p.connect}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	var running sync.WaitGroup
	running.Go(func() { _ = consumer.Run(ctx) })

	p.waitDone(ctx, 10*time.Minute)
	stopped := ctx.Err() != nil
	cancel()
	running.Wait()
	p.links.Wait()

	open := p.open()
	p.mu.Lock() // the retry queue goes on
	defer p.mu.Unlock()
	for _, w := range p.wrong {
		t.Errorf("%s: %s", c, w)
	}
	if len(open) > 0 && !stopped {
		t.Errorf("%s: never done: %v", c, open)
	}
	if held := consumer.Counts().Held.Load(); held != 0 {
		t.Errorf("%s: %d counted as held", c, held)
	}
	quiet := c.disturbed == "" && c.final == "confirmed"
	for _, m := range p.letters {
		dies := c.fates[m.id[0]-'a'] == failsEver || c.fates[m.id[0]-'a'] == malformed
		done, copied := p.committed[m.id], p.copied[m.id]
		switch {
		case stopped:
			// Where the broker had a copy and nobody heard of it, there are two.
			if m.state == "out" || m.state != "gone" && done > 0 && m.crashes == 0 && c.final != "cut" {
				t.Errorf("%s: %s was done and is %s", c, m.id, m.state)
			}
		case dies && (done > 0 || copied == 0), !dies && done == 0:
			t.Errorf("%s: %s done %d times, copied %d times", c, m.id, done, copied)
		case quiet && (done > 1 || copied > 1):
			t.Errorf("%s: %s done %d times, copied %d times, and nothing happened", c, m.id, done, copied)
		}
	}
}
