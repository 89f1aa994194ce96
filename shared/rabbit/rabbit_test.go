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

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"example.com/baton/internal/proxy"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Kept-alive connections of http.DefaultClient to the management API.
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

const patience = 30 * time.Second

// background runs f until the test ends or the returned func is called.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(patience):
				t.Error("Run did not return")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// outcomes collects what became of messages.
type outcomes struct {
	mu   sync.Mutex
	of   map[string][]error
	left sync.WaitGroup
}

func (o *outcomes) publish(ctx context.Context, p *Publisher, msgs []outbox.Message) {
	o.left.Add(len(msgs))
	p.Publish(ctx, msgs, func(i int, err error) {
		o.mu.Lock()
		if o.of == nil {
			o.of = make(map[string][]error)
		}
		o.of[msgs[i].ID] = append(o.of[msgs[i].ID], err)
		o.mu.Unlock()
		o.left.Done()
	})
}

// wait returns the outcome of each message; one that was settled twice or not at
// all fails the test.
func (o *outcomes) wait(t *testing.T) map[string]error {
	t.Helper()
	done := make(chan struct{})
	go func() { o.left.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("messages without an outcome")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[string]error, len(o.of))
	for id, errs := range o.of {
		if len(errs) != 1 {
			t.Errorf("%s settled %d times", id, len(errs))
		}
		all[id] = errs[0]
	}
	return all
}

func messages(prefix, eventType string, n int) []outbox.Message {
	msgs := make([]outbox.Message, n)
	for i := range msgs {
		msgs[i] = outbox.Message{ID: fmt.Sprintf("%s%05d", prefix, i), Type: eventType, AggregateID: "a", Sequence: 1,
			OccurredAt: time.Now(), Payload: []byte(`{}`)}
	}
	return msgs
}

// publisher runs a Publisher to exchange "orders.events" of the vhost.
func publisher(t *testing.T, vhost string, change ...func(*Publisher)) *Publisher {
	t.Helper()
	p := &Publisher{URL: vhost, Exchange: "orders.events", AppID: "test", Logger: testenv.Logger(t)}
	for _, f := range change {
		f(p)
	}
	background(t, p.Run)
	ready(t, p)
	return p
}

func ready(t *testing.T, p *Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		t.Fatalf("publisher not ready: %v, %+v", err, p.State())
	}
}

// bound declares a queue and binds it.
func bound(t *testing.T, ch *amqp.Channel, queue, key string, args amqp.Table) {
	t.Helper()
	if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(queue, key, "orders.events", false, nil); err != nil {
		t.Fatal(err)
	}
}

func depth(t *testing.T, vhost, queue string) int {
	t.Helper()
	n, err := testenv.QueueDepth(vhost, queue)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// drain takes everything from a queue.
func drain(t *testing.T, ch *amqp.Channel, queue string) (got []amqp.Delivery) {
	t.Helper()
	for {
		d, ok, err := ch.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return got
		}
		got = append(got, d)
	}
}

// A2, A3, A4, B20: with thousands in flight on one channel, each return is
// paired with its own message although the broker acks it as well.
func TestReturnsAndConfirmsArePairedExactly(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	p := publisher(t, vhost)
	bound(t, testenv.Channel(t, vhost), "q", "routable", nil)
	const n = 10_000
	msgs := messages("m", "routable", n)
	for i := range msgs {
		if i%3 == 0 {
			msgs[i].Type = "nobody.wants.it"
		}
	}
	var o outcomes
	o.publish(t.Context(), p, msgs)
	got := o.wait(t)
	for i, m := range msgs {
		if err := got[m.ID]; (i%3 == 0) != errors.Is(err, outbox.ErrUnroutable) || (i%3 != 0) != (err == nil) {
			t.Fatalf("message %d of type %s: %v", i, m.Type, err)
		}
	}
	if want := n - (n+2)/3; depth(t, vhost, "q") != want {
		t.Errorf("%d in the queue, want %d", depth(t, vhost, "q"), want)
	}
}

// B23: a nack is a refusal.
func TestNackIsARefusal(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	p := publisher(t, vhost)
	bound(t, testenv.Channel(t, vhost), "q", "full", amqp.Table{"x-max-length": int32(3), "x-overflow": "reject-publish"})
	var o outcomes
	o.publish(t.Context(), p, messages("m", "full", 10))
	refused := 0
	for _, err := range o.wait(t) {
		switch {
		case errors.Is(err, outbox.ErrRefused):
			refused++
		case err != nil:
			t.Error(err)
		}
	}
	if n := depth(t, vhost, "q"); n+refused != 10 || refused == 0 {
		t.Errorf("%d in the queue and %d refused, want 10 together", n, refused)
	}
}

// B23: some brokers never tell the channel that a limit was lifted. A session that
// was refused is not kept for long, and one that was not is.
func TestRefusedSessionIsReplaced(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	p := publisher(t, vhost, func(p *Publisher) { p.ConfirmTimeout = 1500 * time.Millisecond })
	ch, manager := testenv.Channel(t, vhost), testenv.Management(t, vhost)
	bound(t, ch, "q", "routable", amqp.Table{"x-queue-type": "quorum"})
	limit := map[string]any{
		"pattern": "^q$", "apply-to": "queues",
		"definition": map[string]any{"max-length": 3, "overflow": "reject-publish"},
	}
	if err := manager.Do(t.Context(), http.MethodPut, "/policies/{vhost}/full", limit, nil); err != nil {
		t.Fatal(err)
	}
	sent := 0
	try := func() error {
		var o outcomes
		sent++
		o.publish(t.Context(), p, messages(fmt.Sprintf("m%d-", sent), "routable", 1))
		for _, err := range o.wait(t) {
			return err
		}
		return nil
	}
	first := p.current.Load()
	testenv.Eventually(t, patience, "a refusal", func() error {
		if err := try(); !errors.Is(err, outbox.ErrRefused) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	if p.current.Load() != first {
		t.Error("the session was replaced without a reason")
	}
	if err := manager.Do(t.Context(), http.MethodDelete, "/policies/{vhost}/full", nil, nil); err != nil {
		t.Fatal(err)
	}
	drain(t, ch, "q")
	testenv.Eventually(t, patience, "the queue takes messages again, by a new session", func() error {
		if err := try(); err != nil {
			return err
		}
		if p.current.Load() == first {
			return errors.New("the session is the first still")
		}
		return nil
	})
}

// B24: a missing exchange closes the channel; nothing that was in flight counts
// as published, and the next session, which declares it, goes on.
func TestMissingExchangeIsMisconfigured(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	p := publisher(t, vhost)
	ch := testenv.Channel(t, vhost)
	if err := ch.ExchangeDelete("orders.events", false, false); err != nil {
		t.Fatal(err)
	}
	var o outcomes
	o.publish(t.Context(), p, messages("m", "any", 1))
	for id, err := range o.wait(t) {
		if !errors.Is(err, outbox.ErrMisconfigured) || !strings.Contains(err.Error(), "404") || !strings.Contains(err.Error(), "orders.events") {
			t.Errorf("%s: %v", id, err)
		}
	}
	ready(t, p)
	bound(t, ch, "q", "any", nil)
	o.publish(t.Context(), p, messages("again", "any", 3))
	for id, err := range o.wait(t) {
		if strings.HasPrefix(id, "again") && err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// B25: with the connection cut under load again and again, whatever had no
// answer is unknown: none is refused, and none counts as published that is not
// in the queue.
func TestCutConnectionUnderLoad(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	via, throughProxy := testenv.Proxy(t, vhost)
	p := publisher(t, throughProxy)
	ch := testenv.Channel(t, vhost)
	bound(t, ch, "q", "routable", nil)
	var o outcomes
	for round := range 8 {
		ready(t, p)
		go func() { // in the middle of the sending
			for p.current.Load() != nil {
				if s := p.current.Load(); s != nil && len(s.slots) > 20 {
					via.Cut()
					return
				}
				<-time.After(time.Millisecond)
			}
		}()
		o.publish(t.Context(), p, messages(fmt.Sprintf("r%d-", round), "routable", 2000))
		via.Cut()
	}
	got := o.wait(t)
	there := make(map[string]bool)
	for _, d := range drain(t, ch, "q") {
		there[d.MessageId] = true
	}
	counts := map[string]int{}
	for id, err := range got {
		switch {
		case err == nil:
			counts["confirmed"]++
			if !there[id] {
				t.Errorf("%s counts as published and is in no queue", id)
			}
		case errors.Is(err, outbox.ErrUnknown):
			counts["unknown"]++
		case errors.Is(err, outbox.ErrUnreachable):
			counts["unreachable"]++
			if there[id] {
				t.Errorf("%s counts as never sent and is in the queue", id)
			}
		default:
			t.Errorf("%s: %v", id, err)
		}
	}
	t.Logf("%v, %d in the queue", counts, len(there))
	if counts["unknown"] == 0 {
		t.Error("nothing was in flight when the connection was cut: the test shows nothing")
	}
}

// B28, B31: a broker that does not answer gets one message of a new session and
// no more, the wait has an end, and so has Close.
func TestSilentBrokerIsGivenUp(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	via, throughProxy := testenv.Proxy(t, vhost)
	p := publisher(t, throughProxy, func(p *Publisher) { p.ConfirmTimeout = 1500 * time.Millisecond })
	bound(t, testenv.Channel(t, vhost), "q", "routable", nil)
	via.Freeze(proxy.ToServer | proxy.ToClient)
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var o outcomes
	o.publish(ctx, p, messages("m", "routable", 100))
	unknown := 0
	for _, err := range o.wait(t) {
		switch {
		case errors.Is(err, outbox.ErrUnknown):
			unknown++
		case !errors.Is(err, outbox.ErrUnreachable):
			t.Error(err)
		}
	}
	if unknown != 1 {
		t.Errorf("%d unknown, want the one that a session starts with", unknown)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("gave up after %s", took)
	}
	via.Thaw(proxy.ToServer | proxy.ToClient)
	via.Cut()
	ready(t, p)
}

func TestNothingIsSentPastItsDeadline(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	p := publisher(t, vhost)
	bound(t, testenv.Channel(t, vhost), "q", "routable", nil)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Millisecond))
	defer cancel()
	var o outcomes
	o.publish(ctx, p, messages("m", "routable", 10))
	for id, err := range o.wait(t) {
		if !errors.Is(err, outbox.ErrUnreachable) {
			t.Errorf("%s: %v", id, err)
		}
	}
	if n := depth(t, vhost, "q"); n != 0 {
		t.Errorf("%d sent", n)
	}
}

// B62: what the protocol cannot carry is refused here and closes no session.
func TestUnsendableIsRefused(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	p := publisher(t, vhost)
	bound(t, testenv.Channel(t, vhost), "q", "routable", nil)
	msgs := messages("m", "routable", 4)
	msgs[1].Type = strings.Repeat("é", 150) // 300 bytes
	msgs[3].AggregateID = strings.Repeat("é", 150)
	var o outcomes
	o.publish(t.Context(), p, msgs)
	got := o.wait(t)
	if !errors.Is(got["m00001"], outbox.ErrRefused) || !errors.Is(got["m00003"], outbox.ErrRefused) || got["m00000"] != nil || got["m00002"] != nil {
		t.Errorf("got %v", got)
	}
}

// A password never leaves by way of an error.
func TestErrorsDoNotShowThePassword(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"amqp://u:S3cr3tBroker@127.0.0.1:notaport/", "amqp://u:S3cr3tBroker@127.0.0.1:1/", "http://u:S3cr3tBroker@x/", "amqp://u:S3cr3t/Broker@127.0.0.1:1/", "amqp://u:S3cr3t#Broker@127.0.0.1:1/"} {
		_, err := dial(t.Context(), address, "test", nil)
		if err == nil || strings.Contains(describe(err), "S3cr3t") {
			t.Errorf("%v", err)
		}
	}
}
