package rabbit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

// topology is what there is in a vhost beside what every vhost has.
func topology(t *testing.T, vhost string) (names []string) {
	t.Helper()
	m := testenv.Management(t, vhost)
	var exchanges []struct{ Name, Type string }
	if err := m.Do(t.Context(), http.MethodGet, "/exchanges/{vhost}", nil, &exchanges); err != nil {
		t.Fatal(err)
	}
	for _, e := range exchanges {
		if e.Name != "" && !strings.HasPrefix(e.Name, "amq.") {
			names = append(names, e.Name+" "+e.Type)
		}
	}
	queues, err := m.Queues(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range queues {
		names = append(names, fmt.Sprintf("%s %s %v", q.Name, q.Type, q.Arguments))
	}
	bindings, err := m.Bindings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings {
		names = append(names, fmt.Sprintf("%s → %s %s", b.Source, b.Destination, b.RoutingKey))
	}
	return names
}

var sorted = cmp.Transformer("set", func(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
})

// One queue is what it was before there could be several: no exchange, queue,
// argument or binding more.
func TestOneQueueIsBoundDirectly(t *testing.T) {
	t.Parallel()
	s := subscribe(t, always(nil), func(c *Consumer) { c.Queue = c.Queue.Split(1)[0] })
	const own = "inventory.order-events"
	arguments := func(exchange string, more ...any) string {
		args := map[string]any{"x-queue-type": "quorum", "x-delivery-limit": 100000}
		if exchange != "" {
			args["x-dead-letter-exchange"], args["x-dead-letter-routing-key"] = exchange, own
			args["x-dead-letter-strategy"], args["x-overflow"] = "at-least-once", "reject-publish"
		}
		if more != nil {
			args["x-message-ttl"] = more[0]
		}
		return fmt.Sprint(args)
	}
	want := []string{
		"orders.events topic", "inventory.retry direct", "inventory.return direct", "inventory.dlx direct",
		own + " quorum " + arguments("inventory.retry"),
		own + ".retry quorum " + arguments("inventory.return", 200),
		own + ".dlq quorum " + arguments(""),
		"orders.events → " + own + " order.created",
		"orders.events → " + own + " order.cancelled",
		"inventory.retry → " + own + ".retry " + own,
		"inventory.return → " + own + " " + own,
		"inventory.dlx → " + own + ".dlq " + own,
	}
	if diff := cmp.Diff(want, topology(t, s.vhost), sorted); diff != "" {
		t.Error(diff)
	}
}

// shared are the consumers of several queues in one vhost.
type shared struct {
	t     *testing.T
	vhost string
	ch    *amqp.Channel

	mu  sync.Mutex
	got map[string][]string // by message id: queue and attempt of each delivery
}

func newShared(t *testing.T) *shared {
	t.Helper()
	s := &shared{t: t, vhost: testenv.Vhost(t), got: make(map[string][]string)}
	s.ch = testenv.Channel(t, s.vhost)
	if err := s.ch.ExchangeDeclare("orders.events", amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// consume runs a consumer of a queue.
func (s *shared) consume(q Queue, verdict func(Delivery) error) (c *Consumer, stop func()) {
	s.t.Helper()
	c = &Consumer{URL: s.vhost, Queue: q, Logger: testenv.Logger(s.t), Handle: func(_ context.Context, batch []Delivery) []error {
		s.mu.Lock()
		defer s.mu.Unlock()
		errs := make([]error, len(batch))
		for i, d := range batch {
			s.got[d.MessageID] = append(s.got[d.MessageID], fmt.Sprintf("%s %d", q.Name, d.Attempt))
			errs[i] = verdict(d)
		}
		return errs
	}}
	stop = background(s.t, c.Run)
	testenv.Eventually(s.t, patience, "the consumer of "+q.Name, func() error {
		if st := c.State(); !st.Connected || st.Problem != "" {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	return c, stop
}

func (s *shared) handled(n int) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, "all handled", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return testenv.Want(len(s.got), n)
	})
}

// All events of an order are in one queue, and orders are spread about evenly.
func TestEventsOfAnOrderShareAQueue(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	const orders, n = 4000, 4
	for _, q := range testQueue().Split(n) {
		s.consume(q, always(nil))
	}
	p := publisher(t, s.vhost)
	var sent outcomes
	for _, event := range []string{"order.created", "order.cancelled"} {
		msgs := messages(event+" ", event, orders)
		for i := range msgs {
			msgs[i].AggregateID = fmt.Sprintf("ORD-20261130-%06d", i)
		}
		sent.publish(t.Context(), p, msgs)
	}
	for id, err := range sent.wait(t) {
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	s.handled(2 * orders)
	share := make(map[string]int)
	for i := range orders {
		create, cancel := s.got[fmt.Sprintf("order.created %05d", i)], s.got[fmt.Sprintf("order.cancelled %05d", i)]
		if len(create) != 1 || len(cancel) != 1 || create[0] != cancel[0] {
			t.Fatalf("order %d: created in %v, cancelled in %v; want both once, in the same", i, create, cancel)
		}
		share[create[0]]++
	}
	t.Log(share)
	for queue, got := range share {
		if even := orders / n; got < even*8/10 || got > even*12/10 {
			t.Errorf("%s has %d orders of %d, want %d or so", queue, got, orders, even)
		}
	}
	if len(share) != n {
		t.Errorf("%d queues have orders, want %d", len(share), n)
	}
}

// A retry comes back to the queue it came from, and what fails for good ends in
// the one final queue.
func TestRetryComesBackToItsQueue(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	for _, q := range testQueue().Split(3) {
		s.consume(q, func(d Delivery) error {
			if d.Attempt == 1 || d.MessageID == "e00000" {
				return errBad
			}
			return nil
		})
	}
	p := publisher(t, s.vhost)
	msgs := messages("e", "order.created", 60)
	for i := range msgs {
		msgs[i].AggregateID = fmt.Sprintf("ORD-%d", i)
	}
	var sent outcomes
	sent.publish(t.Context(), p, msgs)
	sent.wait(t)
	testenv.Eventually(t, patience, "all tried again", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, m := range msgs {
			if n := len(s.got[m.ID]); n < 2 || m.ID == "e00000" && n < 4 {
				return fmt.Errorf("%s has been delivered %d times", m.ID, n)
			}
		}
		return nil
	})
	queues := make(map[string]bool)
	for _, m := range msgs {
		queue, _, _ := strings.Cut(s.got[m.ID][0], " ")
		queues[queue] = true
		for i, got := range s.got[m.ID] {
			if want := fmt.Sprintf("%s %d", queue, i+1); got != want {
				t.Errorf("%s: delivery %d is of %s, want %s", m.ID, i+1, got, want)
			}
		}
	}
	if len(queues) != 3 {
		t.Errorf("only %v had any; the test shows nothing", queues)
	}
	testenv.Eventually(t, patience, "the dead letter", func() error {
		return testenv.Want(depth(t, s.vhost, "inventory.order-events.dlq"), 1)
	})
	if d := drain(t, s.ch, "inventory.order-events.dlq")[0]; d.MessageId != "e00000" || d.CorrelationId != "ORD-0" ||
		d.Headers[AttemptsHeader] != int32(4) || !strings.Contains(d.Headers[ReasonHeader].(string), "bad message") {
		t.Errorf("dead letter %s of %s with %v", d.MessageId, d.CorrelationId, d.Headers)
	}
}

// Mandatory reaches through the hash: without a queue behind it, a message comes
// back.
func TestUnroutableBehindTheHash(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	q := testQueue().Split(2)[0]
	_, stop := s.consume(q, always(nil))
	stop()
	if err := s.ch.QueueUnbind(q.Name, hashWeight, q.Name, nil); err != nil {
		t.Fatal(err)
	}
	p := publisher(t, s.vhost)
	var sent outcomes
	sent.publish(t.Context(), p, messages("e", "order.created", 3))
	for id, err := range sent.wait(t) {
		if !errors.Is(err, outbox.ErrUnroutable) {
			t.Errorf("%s: %v, want unroutable", id, err)
		}
	}
}

// A process with one queue and one with four declare at the same time, and what
// the second takes away comes last: there is a way to a queue all the same.
func TestDifferentNumbersLeaveAWay(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.consume(testQueue().Split(4)[0], always(nil))
	alone := testQueue().Split(1)[0]
	s.consume(alone, always(nil))
	for _, key := range alone.Keys {
		if err := s.ch.QueueUnbind(alone.Name, key, alone.Source, nil); err != nil {
			t.Fatal(err)
		}
	}
	p := publisher(t, s.vhost)
	var sent outcomes
	sent.publish(t.Context(), p, messages("e", "order.created", 10))
	for id, err := range sent.wait(t) {
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	s.handled(10)
}

// A queue that a larger number has left is taken out of the hash and read to its
// end; its consumer ends when it is deleted, and at once when there is none.
func TestLeftoverIsRead(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	for _, q := range testQueue().Split(3) {
		_, stop := s.consume(q, always(nil))
		stop()
	}
	p := publisher(t, s.vhost)
	msgs := messages("e", "order.created", 300)
	for i := range msgs {
		msgs[i].AggregateID = fmt.Sprintf("ORD-%d", i)
	}
	var sent outcomes
	sent.publish(t.Context(), p, msgs)
	sent.wait(t)
	if depth(t, s.vhost, "inventory.order-events.3") == 0 {
		t.Fatal("nothing in the queue that is to be left over")
	}

	audit := &Audit{ManagementURL: testenv.Shared(t).ManagementURL(t, s.vhost), AMQPURL: s.vhost,
		Unwanted: testQueue().Unwanted(2), Interval: 50 * time.Millisecond}
	background(t, audit.Run)
	problem := func(want string) {
		t.Helper()
		testenv.Eventually(t, patience, "the audit", func() error {
			if st := audit.State(); !st.Checked || (st.Problem == "") != (want == "") || !strings.Contains(st.Problem, want) {
				return fmt.Errorf("%+v, want %q", st, want)
			}
			return nil
		})
	}
	problem("another number of queues: inventory.order-events → inventory.order-events.3 (1)")
	for _, q := range testQueue().Split(2) {
		s.consume(q, always(nil))
	}
	leftover := testQueue().Leftover(3)
	if !leftover.Exists(t.Context(), s.vhost) {
		t.Fatal("the third queue does not exist")
	}
	c := &Consumer{URL: s.vhost, Queue: leftover, Logger: testenv.Logger(t), Handle: func(_ context.Context, batch []Delivery) []error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, d := range batch {
			s.got[d.MessageID] = append(s.got[d.MessageID], "leftover")
		}
		return make([]error, len(batch))
	}}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(t.Context()) }()
	s.handled(len(msgs))
	problem("")

	if _, err := s.ch.QueueDelete("inventory.order-events.3", false, false, false); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("goes on when its queue is gone")
	}
	if leftover.Exists(t.Context(), s.vhost) {
		t.Error("the queue exists again")
	}
	http.DefaultClient.CloseIdleConnections()
}
