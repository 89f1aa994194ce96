package rabbit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The steps of a delivery, in order; after received it is one of the others.
const (
	StepReceived     = "consumer.received"
	StepCommitted    = "consumer.committed" // the handler has done it, the broker does not know
	StepAcked        = "consumer.acked"
	StepRetrying     = "consumer.retrying"      // about to go to the retry queue
	StepDeadLettered = "consumer.dead-lettered" // is in the final queue, not acked yet
)

// Consumer hands the deliveries of a queue to Handle and settles them by what it
// returns: nil acknowledges, [Permanent] sends to the final dead-letter
// exchange, [Unavailable] holds the delivery until the outage is over, any other
// error goes round the retry queue until the attempts run out.
//
// URL, Queue and Handle are required.
type Consumer struct {
	URL   string
	Queue Queue
	// Prefetch is how many deliveries may be unsettled at once. Defaults to 500.
	Prefetch int
	// Batch is the most deliveries per call of Handle. A batch is what has come
	// in meanwhile: nothing waits for it to fill. Defaults to 250; 1 shows them
	// one at a time.
	Batch int
	// Handle returns one verdict per delivery. Calls do not overlap. ctx is done
	// Grace after the context of Run is. A panic is taken as an error of each
	// message, which are then handed over one at a time.
	Handle func(ctx context.Context, batch []Delivery) []error
	// Suspects remembers messages that may have killed their consumer. Without it
	// such a message ends in the final queue after 20 deliveries that crashed,
	// whoever's fault they were.
	Suspects Suspects
	// Grace is how long work in hand may go on after ctx is done. Defaults to 15
	// seconds.
	Grace time.Duration

	// Observe, when set, is called at each step with the message ids that reached
	// it. An error makes the step fail: received deliveries fail with it, and at
	// the later steps the session ends as if the connection had been lost.
	Observe func(ctx context.Context, step string, ids []string) error
	// Logger defaults to slog.Default().
	Logger *slog.Logger

	connect connector // in place of TCP, for tests

	status  status
	counts  ConsumerCounts
	current atomic.Pointer[session]
}

// Suspects counts how often a message was handled alone by a consumer that did
// not live to tell. inbox.Suspects is one.
type Suspects interface {
	// Mark notes that id is about to be handled alone, and returns how many times
	// that is now without a Clear.
	Mark(ctx context.Context, id string) (int, error)
	// Clear notes that the consumer has lived through it.
	Clear(ctx context.Context, id string) error
}

// ConsumerCounts are what a consumer has seen since it was made.
type ConsumerCounts struct {
	Received     atomic.Int64
	Redelivered  atomic.Int64
	Acked        atomic.Int64
	Retried      atomic.Int64
	DeadLettered atomic.Int64
	Held         atomic.Int64 // deliveries held at this moment
}

// State tells whether the consumer consumes and, if not, why.
func (c *Consumer) State() State { return c.status.get() }

// Counts returns the consumer's counters.
func (c *Consumer) Counts() *ConsumerCounts { return &c.counts }

// Reset throws the current session away, so that the next one declares the
// topology anew. What is in hand is delivered again.
func (c *Consumer) Reset(reason error) {
	if s := c.current.Load(); s != nil {
		s.end(reason)
	}
}

const (
	carefulFrom  = 5  // crashed deliveries from which on a message is handled alone
	killerAfter  = 10 // times alone without the consumer living to tell
	crashesLimit = 20 // crashed deliveries that are enough where nobody remembers
	markTimeout  = 2 * time.Second
)

// Run consumes until ctx is done, and then returns nil once the deliveries in
// hand are settled; the others go back to the queue. It keeps trying whatever
// the broker says; [Consumer.State] has the reason meanwhile.
func (c *Consumer) Run(ctx context.Context) error {
	if c.URL == "" || c.Handle == nil || c.Queue.Name == "" || c.Queue.Owner == "" {
		return errors.New("rabbit: a consumer needs a URL, a Queue and a Handle")
	}
	log := cmp.Or(c.Logger, slog.Default()).With("queue", c.Queue.Name)

	// The final forward has a connection of its own: under a memory alarm the
	// broker stops reading a connection that has published, and acks with it.
	finals := &Publisher{URL: c.URL, AppID: c.Queue.Name + " dead-letter", Logger: log, declare: c.Queue.declareDead, connect: c.connect}
	finalsCtx, stopFinals := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { _ = finals.Run(finalsCtx) })

	ctx, gone := context.WithCancel(ctx)
	defer gone()
	open := func(ctx context.Context) (*session, error) {
		s, err := c.open(ctx)
		if c.Queue.leftover && isMissing(err) {
			gone()
		}
		return s, err
	}
	keep(ctx, log, &c.status, open, func(s *session) {
		c.current.Store(s)
		c.status.connected()
		c.serve(ctx, s, finals, log)
		c.current.CompareAndSwap(s, nil)
	})
	stopFinals()
	background.Wait()
	return nil
}

func (c *Consumer) open(ctx context.Context) (*session, error) {
	s, err := dial(ctx, c.URL, c.Queue.Name+" consumer", c.connect)
	if err != nil {
		return nil, err
	}
	if err := c.Queue.declare(s.ch); err != nil {
		s.close()
		return nil, err
	}
	if err := s.ch.Qos(c.prefetch(), 0, false); err != nil {
		s.close()
		return nil, fmt.Errorf("prefetch %d: %w", c.prefetch(), err)
	}
	return s, nil
}

func (c *Consumer) prefetch() int { return cmp.Or(c.Prefetch, 500) }
func (c *Consumer) batch() int    { return cmp.Or(c.Batch, 250) }

// hands is the work of one session: what it holds and how it answers.
type hands struct {
	*Consumer
	log     *slog.Logger
	session *session
	settler *settler
	dead    *forwarder
	next    chan received // from the pump
	ahead   *received     // taken from next and not used: a suspect ends a batch

	held    []received // met an outage; tried again at retryAt
	retryAt time.Time
	backoff time.Duration
	stalled bool // the last call of Handle got nothing done, for several messages
}

// serve consumes on one session until it ends or ctx is done.
func (c *Consumer) serve(ctx context.Context, s *session, finals *Publisher, log *slog.Logger) {
	// Asked for before consuming, for the same reason as every buffer here: the
	// library's reader must never wait for us.
	deliveries, err := s.ch.Consume(c.Queue.Name, "", false, false, false, false, nil)
	if err != nil {
		s.failed(fmt.Errorf("consume %s: %w", c.Queue.Name, err))
		return
	}
	h := &hands{Consumer: c, log: log, session: s, settler: newSettler(s.ch), next: make(chan received, c.prefetch())}
	h.dead = newForwarder(h, finals)
	defer c.counts.Held.Store(0)

	var background sync.WaitGroup
	background.Go(func() { pump(c.Queue, deliveries, h.settler, h.next) })
	background.Go(h.dead.run)

	// Work in hand may finish after ctx is done, within Grace.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopGrace := context.AfterFunc(ctx, func() {
		time.AfterFunc(cmp.Or(c.Grace, 15*time.Second), cancel)
	})
	for h.step(ctx, work) {
	}
	h.dead.finish(work) // before the session is closed: it acks on it
	stopGrace()
	cancel()
	s.close() // ends the pump
	background.Wait()
}

// pump empties the library's unbuffered channel into a buffer, so that a batch
// is what has arrived and not one delivery at a time. The prefetch bounds it.
func pump(q Queue, from <-chan amqp.Delivery, s *settler, to chan<- received) {
	for d := range from {
		s.take(d.DeliveryTag)
		to <- q.receive(d)
	}
	close(to)
}

// step handles one batch. It reports false when there is nothing more to do on
// this session.
func (h *hands) step(ctx, work context.Context) bool {
	batch, ok := h.collect(ctx)
	if !ok {
		return false
	}
	if len(batch) == 0 {
		return true
	}
	verdicts := h.handle(work, batch)
	if h.session.life.Err() != nil {
		return false // nobody to answer to; all of it will be delivered again
	}
	return h.answer(work, batch, verdicts)
}

// collect waits for something to do and takes it: what was held when its time
// has come, and what has arrived, in order. A suspect is a batch of its own.
func (h *hands) collect(ctx context.Context) (batch []received, ok bool) {
	var due <-chan time.Time
	arrivals := h.next
	if len(h.held) > 0 {
		timer := time.NewTimer(time.Until(h.retryAt))
		defer timer.Stop()
		due = timer.C
		if h.stalled {
			arrivals = nil // an outage: wait for the next try
		}
	}
	if ctx.Err() != nil {
		return nil, false
	}
	if h.ahead != nil && arrivals != nil {
		batch, h.ahead = []received{*h.ahead}, nil
	} else {
		select {
		case r, open := <-arrivals:
			if !open {
				<-h.session.over() // with the reason why there are no more
				return nil, false
			}
			h.count(r)
			batch = append(batch, r)
		case <-due:
			batch = h.takeHeld()
		case <-h.session.over():
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
	if batch[0].crashes >= carefulFrom {
		return batch, true
	}
	for len(batch) < h.batch() && h.ahead == nil {
		select {
		case r, open := <-h.next:
			if !open {
				return batch, true // whatever was in hand is handled; the session's end is seen next
			}
			h.count(r)
			if r.crashes >= carefulFrom {
				h.ahead = &r
				return batch, true
			}
			batch = append(batch, r)
		default:
			return batch, true
		}
	}
	return batch, true
}

// takeHeld takes a batch of what is held, up to the first suspect, which comes
// alone.
func (h *hands) takeHeld() []received {
	n := 0
	for n < min(len(h.held), h.batch()) && h.held[n].crashes < carefulFrom {
		n++
	}
	n = max(n, 1)
	batch := h.held[:n:n]
	h.held = h.held[n:]
	return batch
}

func (h *hands) count(r received) {
	h.counts.Received.Add(1)
	if r.Redelivered {
		h.counts.Redelivered.Add(1)
	}
}

// handle returns a verdict for each delivery of the batch.
func (h *hands) handle(ctx context.Context, batch []received) []error {
	if len(batch) == 1 && batch[0].crashes >= carefulFrom {
		return []error{h.handleSuspect(ctx, batch[0])}
	}
	return h.begin(ctx, batch)
}

// begin hands a batch over. Whatever may crash because of a message comes after
// this, and so after the mark of a suspect.
func (h *hands) begin(ctx context.Context, batch []received) []error {
	if err := h.observe(ctx, StepReceived, batch); err != nil {
		return same(err, len(batch))
	}
	return h.call(ctx, batch)
}

// errKiller is the reason of a message that nobody lived through.
var errKiller = errors.New("kills its consumer")

// handleSuspect handles a message that many crashes held, with a mark where a
// crash does not wipe it out: only a mark says that it was this message.
func (h *hands) handleSuspect(ctx context.Context, r received) error {
	if h.Suspects == nil {
		if r.crashes >= crashesLimit {
			return Permanent(fmt.Errorf("%w: %d deliveries ended with their consumer", errKiller, r.crashes))
		}
		return h.begin(ctx, []received{r})[0]
	}
	// Not bound to ctx: a mark that stays because we are stopping would count as a
	// crash.
	marking, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	n, err := h.Suspects.Mark(marking, r.id())
	cancel()
	if err != nil {
		return Unavailable(err)
	}
	if n > killerAfter {
		err = Permanent(fmt.Errorf("%w: handled alone %d times, and none of them lived to tell", errKiller, n-1))
	} else {
		err = h.begin(ctx, []received{r})[0]
	}
	clearing, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	if clearErr := h.Suspects.Clear(clearing, r.id()); clearErr != nil {
		h.log.Warn("a mark of a suspect stays; it counts as one crash", "message_id", r.MessageId, "err", clearErr)
	}
	return err
}

// call calls Handle. When it panics over a batch, each message is handed over
// alone, so that the culprit harms only itself.
func (h *hands) call(ctx context.Context, batch []received) []error {
	handed := make([]Delivery, len(batch))
	verdicts := make([]error, len(batch))
	var todo []int
	for i, r := range batch {
		if r.pastRetries > h.Queue.retries() {
			verdicts[i] = Permanent(errors.New("came back after its last attempt"))
			continue
		}
		todo = append(todo, i)
		handed[len(todo)-1] = r.handed()
	}
	handed = handed[:len(todo)]
	results, err := h.safely(ctx, handed)
	switch {
	case err == nil:
		for j, i := range todo {
			verdicts[i] = results[j]
		}
	case len(todo) == 1:
		verdicts[todo[0]] = err
	default:
		for j, i := range todo {
			if results, err = h.safely(ctx, handed[j:j+1]); err != nil {
				verdicts[i] = err
			} else {
				verdicts[i] = results[0]
			}
		}
	}
	return verdicts
}

func (h *hands) safely(ctx context.Context, batch []Delivery) (verdicts []error, err error) {
	if len(batch) == 0 {
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("handler panicked: %v", p)
			h.log.Error("handler panicked", "messages", len(batch), "message_id", batch[0].MessageID,
				"err", p, "stack", string(debug.Stack()))
		}
	}()
	verdicts = h.Handle(ctx, batch)
	if len(verdicts) != len(batch) {
		return nil, fmt.Errorf("handler gave %d verdicts for %d deliveries", len(verdicts), len(batch))
	}
	return verdicts, nil
}

// answer settles a batch. It reports false when the session is of no more use.
func (h *hands) answer(ctx context.Context, batch []received, verdicts []error) bool {
	var done, retry, hold []received
	var firstHeld error
	for i, r := range batch {
		switch err := verdicts[i]; {
		case err == nil:
			done = append(done, r)
		case IsUnavailable(err):
			hold, firstHeld = append(hold, r), cmp.Or(firstHeld, err)
		case IsPermanent(err):
			h.dead.add(r, true, err)
		case r.exhausted(h.Queue):
			h.dead.add(r, true, fmt.Errorf("attempts exhausted: %w", err))
		case r.forged:
			// Never nacked: on 3.10 a forged x-death that is dead-lettered stops all
			// at-least-once dead-lettering of the node. A copy without it goes where a
			// nack would have sent it.
			h.dead.add(r, false, err)
		default:
			h.log.Warn("message failed, will be tried again", "message_id", r.MessageId, "topic", r.Type,
				"attempt", r.pastRetries+1, "err", err)
			retry = append(retry, r)
		}
	}
	if err := h.settle(ctx, done, retry); err != nil {
		h.session.failed(err)
		return false
	}
	// One message that gets nowhere may wait for a row that somebody has locked;
	// only when several get nowhere is it all of them.
	h.hold(hold, len(hold) == len(batch) && len(batch) > 1, firstHeld)
	return true
}

func (h *hands) settle(ctx context.Context, done, retry []received) error {
	if len(done) > 0 {
		if err := h.observe(ctx, StepCommitted, done); err != nil {
			return err
		}
		tags := make([]uint64, len(done))
		for i, r := range done {
			tags[i] = r.DeliveryTag
		}
		if err := h.settler.ack(tags...); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
		h.counts.Acked.Add(int64(len(done)))
		if err := h.observe(ctx, StepAcked, done); err != nil {
			return err
		}
	}
	if len(retry) > 0 {
		if err := h.observe(ctx, StepRetrying, retry); err != nil {
			return err
		}
		for _, r := range retry {
			if err := h.settler.retry(r.DeliveryTag); err != nil {
				return fmt.Errorf("nack: %w", err)
			}
		}
		h.counts.Retried.Add(int64(len(retry)))
	}
	return nil
}

const (
	holdFirst = 200 * time.Millisecond
	holdCap   = 5 * time.Second
)

// hold keeps deliveries that met an outage. They spend no attempt, however long
// it lasts.
func (h *hands) hold(met []received, nothingDone bool, err error) {
	wasHolding := len(h.held) > 0 || h.stalled
	h.held = append(h.held, met...)
	h.counts.Held.Store(int64(len(h.held)))
	switch {
	case len(met) == 0:
		h.stalled = false
		if len(h.held) == 0 && h.backoff > 0 {
			h.backoff = 0
			h.status.connected()
			h.log.Info("outage over, nothing is held any more")
		}
		return
	case nothingDone:
		h.stalled = true
	default:
		h.stalled = false
	}
	h.backoff = min(max(h.backoff*2, holdFirst), holdCap)
	h.retryAt = time.Now().Add(h.backoff)
	if h.status.problem("holding deliveries: "+err.Error()) && !wasHolding {
		h.log.Warn("outage, holding deliveries until it is over", "messages", len(h.held),
			"message_id", met[0].MessageId, "err", err)
	}
}

func (h *hands) observe(ctx context.Context, step string, batch []received) error {
	if h.Observe == nil {
		return nil
	}
	ids := make([]string, len(batch))
	for i, r := range batch {
		ids[i] = r.MessageId
	}
	return h.Observe(ctx, step, ids)
}

func same(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
