package rabbit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/testenv"
)

func testQueue() Queue {
	return Queue{Name: "inventory.order-events", Owner: "inventory", Source: "orders.events",
		Keys: []string{"order.created", "order.cancelled"}, RetryTTL: 200 * time.Millisecond}
}

// subscription is a consumer in a vhost of its own, and a channel beside it.
type subscription struct {
	*Consumer
	t     *testing.T
	vhost string
	ch    *amqp.Channel
	stop  func()

	mu       sync.Mutex
	attempts map[string][]int
	at       map[string][]time.Time
	batches  []int
}

// subscribe runs a consumer whose handler gives each delivery a verdict.
func subscribe(t *testing.T, verdict func(d Delivery) error, change ...func(*Consumer)) *subscription {
	t.Helper()
	vhost := testenv.Vhost(t)
	s := &subscription{t: t, vhost: vhost, ch: testenv.Channel(t, vhost), attempts: map[string][]int{}, at: map[string][]time.Time{}}
	if err := s.ch.ExchangeDeclare("orders.events", amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	s.Consumer = &Consumer{URL: vhost, Queue: testQueue(), Logger: testenv.Logger(t), Handle: func(_ context.Context, batch []Delivery) []error {
		s.mu.Lock()
		s.batches = append(s.batches, len(batch))
		for _, d := range batch {
			s.attempts[d.MessageID] = append(s.attempts[d.MessageID], d.Attempt)
			s.at[d.MessageID] = append(s.at[d.MessageID], time.Now())
		}
		s.mu.Unlock()
		errs := make([]error, len(batch))
		for i, d := range batch {
			errs[i] = verdict(d)
		}
		return errs
	}}
	for _, f := range change {
		f(s.Consumer)
	}
	s.start()
	return s
}

func (s *subscription) start() {
	s.stop = background(s.t, s.Run)
	s.connected()
}

func (s *subscription) connected() {
	s.t.Helper()
	testenv.Eventually(s.t, patience, "the consumer", func() error {
		if st := s.State(); !st.Connected || st.Problem != "" {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

func (s *subscription) publish(id string, change ...func(*amqp.Publishing)) {
	s.t.Helper()
	msg := amqp.Publishing{MessageId: id, Type: "order.created", ContentType: "application/json", DeliveryMode: amqp.Persistent,
		Timestamp: time.Unix(1_800_000_000, 0), Body: []byte(`{"eventId": "` + id + `"}`)}
	for _, f := range change {
		f(&msg)
	}
	if err := s.ch.Publish("orders.events", "order.created", false, false, msg); err != nil {
		s.t.Fatal(err)
	}
}

func (s *subscription) dead(n int) []amqp.Delivery {
	s.t.Helper()
	s.depth(s.Queue.DeadName(), n)
	return drain(s.t, s.ch, s.Queue.DeadName())
}

// depth waits until a queue has n messages.
func (s *subscription) depth(queue string, n int) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, fmt.Sprintf("%d in %s", n, queue), func() error {
		got, err := testenv.QueueDepth(s.vhost, queue)
		if err == nil && got != n {
			err = fmt.Errorf("%d", got)
		}
		return err
	})
}

func (s *subscription) acked(n int64) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, fmt.Sprintf("%d acked", n), func() error {
		if got := s.Counts().Acked.Load(); got != n {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
}

func (s *subscription) triesOf(id string) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.attempts[id])
}

var errBad = errors.New("bad message")

func always(err error) func(Delivery) error { return func(Delivery) error { return err } }

// B48: 3 retries make 4 deliveries, with the retry time between
// them, and then the final queue has the original with its attempts and reason.
func TestFailingMessageGoesRoundAndEndsInTheFinalQueue(t *testing.T) {
	t.Parallel()
	s := subscribe(t, always(errBad), func(c *Consumer) { c.Queue.RetryTTL = 500 * time.Millisecond })
	// Another subscriber must not see a retry.
	bound(t, s.ch, "other", "order.created", nil)
	s.publish("m1", func(p *amqp.Publishing) {
		p.Body = []byte(`{"big": 9007199254740993}  `)
		p.Headers = amqp.Table{"traceparent": "00-1", "n": int64(9007199254740993)}
		p.CorrelationId = "c"
	})
	dead := s.dead(1)
	if d := cmp.Diff([]int{1, 2, 3, 4}, s.triesOf("m1")); d != "" {
		t.Error(d)
	}
	for i := 1; i < len(s.at["m1"]); i++ {
		if gap := s.at["m1"][i].Sub(s.at["m1"][i-1]); gap < 490*time.Millisecond {
			t.Errorf("retry %d came after %s", i, gap)
		}
	}
	d := dead[0]
	if string(d.Body) != `{"big": 9007199254740993}  ` || d.MessageId != "m1" || d.Type != "order.created" || d.CorrelationId != "c" ||
		!d.Timestamp.Equal(time.Unix(1_800_000_000, 0)) || d.ContentType != "application/json" || d.DeliveryMode != amqp.Persistent {
		t.Errorf("not the original: %+v", d)
	}
	delete(d.Headers, "x-delivery-count") // written by the broker for whoever looks
	want := amqp.Table{"traceparent": "00-1", "n": int64(9007199254740993), AttemptsHeader: int32(4), ReasonHeader: "attempts exhausted: bad message"}
	if diff := cmp.Diff(want, d.Headers); diff != "" {
		t.Error(diff)
	}
	if n := depth(t, s.vhost, "other"); n != 1 {
		t.Errorf("another queue has %d copies, want 1", n)
	}
	s.depth(s.Queue.Name, 0)
	s.depth(s.Queue.RetryName(), 0)
}

// B48: a hundred messages go round together, and none of them is dropped on the
// way because the broker takes the round for a circle.
func TestNoneIsLostGoingRound(t *testing.T) {
	t.Parallel()
	for _, queues := range []string{"quorum", "classic"} {
		t.Run(queues, func(t *testing.T) {
			t.Parallel()
			s := subscribe(t, always(errBad), func(c *Consumer) { c.Queue.Type = queues })
			const messages = 100
			for i := range messages {
				s.publish(fmt.Sprintf("m%03d", i))
			}
			dead := make(map[string]bool)
			for _, d := range s.dead(messages) {
				dead[d.MessageId] = true
				if got := s.triesOf(d.MessageId); !slices.Equal(got, []int{1, 2, 3, 4}) {
					t.Errorf("%s: attempts %v", d.MessageId, got)
				}
			}
			if len(dead) != messages {
				t.Errorf("%d of %d messages are in the final queue", len(dead), messages)
			}
			s.depth(s.Queue.Name, 0)
			s.depth(s.Queue.RetryName(), 0)
		})
	}
}

// B52: there is one delay for all, of the queue. A message that fails for the
// first time does not wait behind one that has failed often.
func TestDelayIsTheSameForAll(t *testing.T) {
	t.Parallel()
	const delay = 5 * time.Second
	s := subscribe(t, always(errBad), func(c *Consumer) { c.Queue.RetryTTL = delay })
	s.publish("old")
	testenv.Eventually(t, patience, "its third try", func() error {
		return testenv.Want(len(s.triesOf("old")), 3)
	})
	s.publish("new")
	testenv.Eventually(t, patience, "both are tried again", func() error {
		return testenv.Want([2]int{len(s.triesOf("old")), min(len(s.triesOf("new")), 2)}, [2]int{4, 2})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	took, other := s.at["new"][1].Sub(s.at["new"][0]), s.at["old"][3].Sub(s.at["old"][2])
	if took < delay-10*time.Millisecond || took > max(delay, other)+delay/5 {
		t.Errorf("a first retry came after %s and a third after %s, want %s and a fifth of it at most", took, other, delay)
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err   error
		tries int
		dead  bool
	}{
		"done":      {nil, 1, false},
		"permanent": {Permanent(errBad), 1, true},
		"wrapped":   {fmt.Errorf("handle: %w", Permanent(errBad)), 1, true},
		"failed":    {errBad, 4, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := subscribe(t, always(tt.err))
			s.publish("m")
			if tt.dead {
				s.dead(1)
			} else {
				s.acked(1)
			}
			if got := len(s.triesOf("m")); got != tt.tries {
				t.Errorf("%d deliveries, want %d", got, tt.tries)
			}
			s.depth(s.Queue.Name, 0)
			s.depth(s.Queue.RetryName(), 0)
		})
	}
}

// An outage spends no attempt and fills no dead-letter queue.
func TestOutageHoldsWhatArrives(t *testing.T) {
	t.Parallel()
	var out atomic.Bool
	out.Store(true)
	s := subscribe(t, func(Delivery) error {
		if out.Load() {
			return Unavailable(errors.New("database down"))
		}
		return nil
	})
	for i := range 50 {
		s.publish(fmt.Sprint(i))
	}
	testenv.Eventually(t, patience, "several tries", func() error {
		if n := len(s.triesOf("0")); n < 6 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	if st := s.State(); !strings.Contains(st.Problem, "database down") {
		t.Errorf("state %+v does not say why", st)
	}
	out.Store(false)
	s.acked(50)
	for _, n := range s.triesOf("0") {
		if n != 1 {
			t.Errorf("an attempt was spent: %v", s.triesOf("0"))
			break
		}
	}
	s.depth(s.Queue.DeadName(), 0)
	s.connected()
}

// Under load many deliveries are handed over at once; with Batch 1 never.
func TestBatches(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	s := subscribe(t, func(Delivery) error { <-hold; return nil }, func(c *Consumer) { c.Batch = 30 })
	for i := range 100 {
		s.publish(fmt.Sprint(i))
	}
	testenv.Eventually(t, patience, "all prefetched", func() error {
		qs, err := testenv.Management(t, s.vhost).Queues(t.Context())
		if err == nil && qs[s.Queue.Name].Unacked != 100 {
			err = fmt.Errorf("%d unacked", qs[s.Queue.Name].Unacked)
		}
		return err
	})
	close(hold)
	s.acked(100)
	s.mu.Lock()
	defer s.mu.Unlock()
	if top := slices.Max(s.batches); top != 30 {
		t.Errorf("batches %v, want up to 30", s.batches)
	}
}

// A panic is the message's own failure and harms nobody else in its batch.
func TestPanicIsAFailure(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	s := subscribe(t, func(d Delivery) error {
		<-hold
		if d.MessageID == "bad" {
			panic("boom")
		}
		return nil
	})
	for _, id := range []string{"a", "b", "bad", "c"} {
		s.publish(id)
	}
	close(hold)
	dead := s.dead(1)
	if dead[0].MessageId != "bad" || !strings.Contains(fmt.Sprint(dead[0].Headers[ReasonHeader]), "boom") {
		t.Errorf("dead: %s %v", dead[0].MessageId, dead[0].Headers)
	}
	s.acked(3)
}

// B56, B58: a forged history, or a count in our own header, neither crashes us,
// nor wins more attempts than four, nor is lost, whatever its shape.
func TestForgedDeathsInEveryShape(t *testing.T) {
	t.Parallel()
	entry := func(count any) amqp.Table {
		return amqp.Table{"queue": "inventory.order-events", "reason": "rejected", "count": count, "exchange": "orders.events",
			"time": time.Unix(1, 0), "routing-keys": []any{"order.created"}}
	}
	shapes := map[string]any{
		"string": "99", "nil": nil, "number": int64(3), "table": amqp.Table{"count": int64(1)}, "empty": []any{},
		"of strings": []any{"x"}, "of nothing": []any{nil}, "huge": []any{entry(int64(99))}, "negative": []any{entry(int64(-1))},
		"int8": []any{entry(int8(1))}, "int16": []any{entry(int16(1))}, "int32": []any{entry(int32(1))}, "float": []any{entry(float64(1))},
		"text count": []any{entry("1")}, "bool": []any{entry(true)}, "no count": []any{amqp.Table{"queue": "q"}}, "bytes": []byte{0, 255},
	}
	s := subscribe(t, func(d Delivery) error {
		if strings.HasPrefix(d.MessageID, "fails") {
			return errBad
		}
		return nil
	})
	for name, shape := range shapes {
		for _, what := range []string{"works ", "fails "} {
			s.publish(what+name, func(p *amqp.Publishing) {
				p.Headers = amqp.Table{"x-death": shape, AttemptsHeader: shape, "kept": "yes"}
			})
		}
	}
	s.acked(int64(len(shapes)))
	dead := s.dead(len(shapes))
	for _, d := range dead {
		if got := s.triesOf(d.MessageId); !slices.Equal(got, []int{1, 2, 3, 4}) {
			t.Errorf("%s: attempts %v", d.MessageId, got)
		}
		if d.Headers["kept"] != "yes" || d.Headers["x-death"] != nil || d.Headers[AttemptsHeader] != int32(4) {
			t.Errorf("%s: headers %v", d.MessageId, d.Headers)
		}
	}
	// At-least-once dead-lettering still works on this node.
	s.publish("fails honestly")
	if s.dead(1)[0].MessageId != "fails honestly" {
		t.Error("dead-lettering stopped")
	}
}

// B60: header types of other clients survive retries and the final forward.
func TestOddHeadersSurvive(t *testing.T) {
	t.Parallel()
	headers := amqp.Table{
		"a": amqp.Table{"deep": amqp.Table{"er": int32(1)}}, "b": []any{int32(1), "x", nil}, "c": time.Unix(1_700_000_000, 0),
		"d": amqp.Decimal{Scale: 2, Value: 19900}, "e": []byte{0, 255}, "f": nil, "g": float32(1.5), "h": int8(-1), "i": true,
		"CC": []any{"elsewhere"},
	}
	var left atomic.Int32
	left.Store(2)
	s := subscribe(t, func(d Delivery) error {
		if d.MessageID == "heals" && left.Add(-1) < 0 {
			return nil
		}
		return errBad
	})
	for _, id := range []string{"heals", "dies"} {
		s.publish(id, func(p *amqp.Publishing) { p.Headers = headers })
	}
	s.acked(1)
	d := s.dead(1)[0]
	for k, want := range headers {
		if k == "CC" {
			continue
		}
		if diff := cmp.Diff(want, d.Headers[k]); diff != "" {
			t.Errorf("%s: %s", k, diff)
		}
	}
}

// remembered is a Suspects in memory.
type remembered struct {
	mu     sync.Mutex
	marks  map[string]int
	marked int
}

func (r *remembered) Mark(_ context.Context, id string) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks[id]++
	r.marked++
	return r.marks[id], nil
}

func (r *remembered) Clear(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.marks, id)
	return nil
}

// Thirty lost connections while 500 deliveries are held are nobody's fault, and
// nothing is dead-lettered; but from the fifth on each is handled alone.
func TestLostConnectionsAreNobodysFault(t *testing.T) {
	t.Parallel()
	suspects := &remembered{marks: map[string]int{}}
	// The handler hangs until the session it got the deliveries from is lost.
	var hold atomic.Bool
	hold.Store(true)
	var s *subscription
	s = subscribe(t, func(Delivery) error {
		if hold.Load() {
			<-s.current.Load().over()
		}
		return nil
	}, func(c *Consumer) { c.Suspects = suspects })
	for i := range 500 {
		s.publish(fmt.Sprint(i))
	}
	inHand := func(more int64) int64 {
		testenv.Eventually(t, patience, "deliveries in hand", func() error {
			if n := s.Counts().Received.Load(); n <= more {
				return fmt.Errorf("%d received", n)
			}
			return nil
		})
		return s.Counts().Received.Load()
	}
	received := inHand(0)
	for range 30 {
		s.Reset(errors.New("cut by the test"))
		received = inHand(received)
	}
	hold.Store(false)
	s.Reset(errors.New("cut by the test"))
	s.depth(s.Queue.Name, 0)
	testenv.Eventually(t, patience, "all acked", func() error {
		qs, err := testenv.Management(t, s.vhost).Queues(t.Context())
		if err == nil && qs[s.Queue.Name].Messages != 0 {
			err = fmt.Errorf("%+v", qs[s.Queue.Name])
		}
		return err
	})
	s.depth(s.Queue.DeadName(), 0)
	suspects.mu.Lock()
	defer suspects.mu.Unlock()
	if suspects.marked == 0 || len(suspects.marks) != 0 {
		t.Errorf("%d marks set, %d left", suspects.marked, len(suspects.marks))
	}
}

// The dead-letter queue may be looked at as often as people like.
func TestLookingAtTheFinalQueueTakesNothingAway(t *testing.T) {
	t.Parallel()
	s := subscribe(t, always(Permanent(errBad)))
	for i := range 20 {
		s.publish(fmt.Sprint(i))
	}
	s.depth(s.Queue.DeadName(), 20)
	for range 50 {
		for {
			d, ok, err := s.ch.Get(s.Queue.DeadName(), false)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if d.DeliveryTag%20 == 0 { // all seen: give all back
				if err := d.Nack(true, true); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		s.depth(s.Queue.DeadName(), 20)
	}
}

// The end of the line must not lose what it is for: a final queue that is gone
// is declared again, and nothing was acked before it was there.
func TestFinalQueueDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	s := subscribe(t, always(Permanent(errBad)))
	if _, err := s.ch.QueueDelete(s.Queue.DeadName(), false, false, false); err != nil {
		t.Fatal(err)
	}
	s.publish("m")
	if got := s.dead(1); got[0].MessageId != "m" {
		t.Errorf("got %s", got[0].MessageId)
	}
}

// B38: when the queue is deleted under it, the consumer says so, does not spin,
// and resumes.
func TestQueueDeletedUnderTheConsumer(t *testing.T) {
	t.Parallel()
	s := subscribe(t, always(nil))
	if _, err := s.ch.QueueDelete(s.Queue.Name, false, false, false); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, "the queue again", func() error {
		if s.publish("m"); s.Counts().Acked.Load() == 0 {
			return errors.New("nothing consumed")
		}
		return nil
	})
}

// B54, B55: a queue that exists with other arguments is named with both values
// and what to do, and the consumer waits calmly.
func TestInequivalentArgumentsAreExplained(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	ch := testenv.Channel(t, vhost)
	if err := ch.ExchangeDeclare("orders.events", amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	old := testQueue()
	old.RetryTTL = 5 * time.Second
	if err := old.declare(ch); err != nil {
		t.Fatal(err)
	}
	c := &Consumer{URL: vhost, Queue: testQueue(), Logger: testenv.Logger(t), Handle: func(context.Context, []Delivery) []error { panic("consumes") }}
	background(t, c.Run)
	testenv.Eventually(t, patience, "the reason", func() error {
		p := c.State().Problem
		for _, part := range []string{"inventory.order-events.retry", "x-message-ttl", "'200'", "'5000'", "delete"} {
			if !strings.Contains(p, part) {
				return fmt.Errorf("no %q in %q", part, p)
			}
		}
		return nil
	})
	if _, err := ch.QueueDelete("inventory.order-events.retry", false, false, false); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, "the consumer", func() error {
		if st := c.State(); !st.Connected {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

// The exchange belongs to somebody else: the consumer waits for it.
func TestMissingSourceIsWaitedFor(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	c := &Consumer{URL: vhost, Queue: testQueue(), Logger: testenv.Logger(t), Handle: func(context.Context, []Delivery) []error { return nil }}
	background(t, c.Run)
	testenv.Eventually(t, patience, "the reason", func() error {
		if p := c.State().Problem; !strings.Contains(p, "orders.events") || !strings.Contains(p, "waiting") {
			return errors.New(p)
		}
		return nil
	})
	publisher(t, vhost)
	testenv.Eventually(t, patience, "the consumer", func() error {
		if st := c.State(); !st.Connected {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

// B40: what is in hand when ctx is done is finished and acked, the rest goes
// back to the queue.
func TestShutdownFinishesWhatIsInHand(t *testing.T) {
	t.Parallel()
	started, finish := make(chan struct{}, 20), make(chan struct{})
	s := subscribe(t, func(Delivery) error { started <- struct{}{}; <-finish; return nil }, func(c *Consumer) { c.Batch = 1 })
	for i := range 10 {
		s.publish(fmt.Sprint(i))
	}
	<-started
	stopped := make(chan struct{})
	go func() { s.stop(); close(stopped) }()
	// The request to stop is there before the handler ends.
	testenv.Eventually(t, patience, "a while", func() error { close(finish); return nil })
	<-stopped
	handled := int(s.Counts().Acked.Load())
	if handled == 0 {
		t.Error("the delivery in hand was not acked")
	}
	s.depth(s.Queue.Name, 10-handled)
}

// A classic queue works the same.
func TestClassicQueue(t *testing.T) {
	t.Parallel()
	s := subscribe(t, always(errBad), func(c *Consumer) { c.Queue.Type = "classic" })
	s.publish("m")
	s.dead(1)
	if d := cmp.Diff([]int{1, 2, 3, 4}, s.triesOf("m")); d != "" {
		t.Error(d)
	}
}

// A5: the audit sees the binding that neither a confirm nor a return speaks of.
func TestAuditFindsAMissingBinding(t *testing.T) {
	t.Parallel()
	s := subscribe(t, always(nil))
	u := testenv.Shared(t).ManagementURL(t, s.vhost)
	repaired := make(chan error, 10)
	a := &Audit{ManagementURL: u, AMQPURL: s.vhost, Bindings: s.Queue.Bindings(), Interval: 50 * time.Millisecond,
		Logger: testenv.Logger(t), Repair: func(err error) { repaired <- err; s.Reset(err) }}
	background(t, a.Run)
	allThere := func() error {
		if st := a.State(); !st.Checked || len(st.Missing) > 0 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	}
	testenv.Eventually(t, patience, "a clean audit", allThere)
	if err := testenv.Management(t, s.vhost).DeleteBinding(t.Context(), "orders.events", s.Queue.Name, "order.cancelled"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-repaired:
		if !strings.Contains(err.Error(), "order.cancelled") {
			t.Errorf("does not name it: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("not found")
	}
	testenv.Eventually(t, patience, "the binding again", allThere)

	none := &Audit{AMQPURL: s.vhost, Bindings: s.Queue.Bindings()}
	background(t, none.Run)
	testenv.Eventually(t, patience, "an answer", func() error {
		if st := none.State(); st.Checked || !strings.Contains(st.Problem, "not checked") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	http.DefaultClient.CloseIdleConnections()
}
