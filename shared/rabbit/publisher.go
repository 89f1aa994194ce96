package rabbit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/shared/outbox"
)

// window is how many messages may be unconfirmed on the channel. The buffers for
// returns and confirms are as large, so that the library's reader never waits.
const window = 4096

// Publisher sends the messages of an outbox relay to an exchange, persistent and
// mandatory, many in flight on one channel, and pairs every return and confirm
// with its message. It is an [outbox.Publisher].
//
// URL and Exchange are required. [Publisher.Run] must be running for messages to
// be sent.
type Publisher struct {
	URL      string
	Exchange string // durable topic exchange, declared at the start of each session
	AppID    string // app_id of every message, and part of the connection's name
	// ConfirmTimeout is how long a message may be without an answer before it
	// counts as unknown and its session is thrown away. Defaults to 15 seconds.
	ConfirmTimeout time.Duration

	// Observe, when set, is called with the ids of messages once they were written
	// to the socket (outbox.StepSent). An error ends the session as if the
	// connection had been lost at this point.
	Observe func(ctx context.Context, step string, ids []string) error
	// Logger defaults to slog.Default().
	Logger *slog.Logger

	declare func(*amqp.Channel) error // in place of Exchange, for the final forward
	connect connector                 // in place of TCP, for tests

	status  status
	current atomic.Pointer[pubSession]
	sending sync.Mutex // one sender at a time, so that tags follow the order of sending
}

var _ outbox.Publisher = (*Publisher)(nil)

// State tells whether the publisher can send and, if not, why.
func (p *Publisher) State() State { return p.status.get() }

// Run keeps a session with the broker until ctx is done, and then returns nil
// once it is closed; what is unconfirmed at that moment is settled as unknown.
// So end it after the relay that uses the publisher.
func (p *Publisher) Run(ctx context.Context) error {
	if p.URL == "" || (p.Exchange == "" && p.declare == nil) {
		return errors.New("rabbit: a publisher needs a URL and an Exchange")
	}
	log := cmp.Or(p.Logger, slog.Default()).With("connection", p.name())
	var s *pubSession
	var misconfigured string // why the last session was closed, until one gets an answer
	keep(ctx, log, &p.status,
		func(ctx context.Context) (_ *session, err error) {
			s, err = p.open(ctx)
			if err != nil {
				return nil, err
			}
			return s.session, nil
		},
		func(*session) {
			p.current.Store(s)
			// A problem that closes the channel is not over because another could be
			// opened: only an answer shows that.
			p.status.set(State{Connected: true, Problem: misconfigured})
			s.answered = func() {
				if misconfigured != "" {
					misconfigured = ""
					p.status.connected()
				}
			}
			s.watchUntilOver(ctx, log, &p.status)
			p.current.CompareAndSwap(s, nil)
			if err := lostWith(s.reason()); errors.Is(err, outbox.ErrMisconfigured) {
				misconfigured = describe(s.reason())
			}
		})
	return nil
}

func (p *Publisher) name() string { return cmp.Or(p.AppID, "baton") + " publisher" }

// Reset throws the current session away, so that the next declares anew.
func (p *Publisher) Reset(reason error) {
	if s := p.current.Load(); s != nil {
		s.end(reason)
	}
}

// Ready implements [outbox.Publisher]: there is a session and the broker takes
// messages.
func (p *Publisher) Ready(ctx context.Context) error {
	for {
		changed := p.status.watch()
		if s := p.current.Load(); s != nil && s.life.Err() == nil && !s.isBlocked() {
			return ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Publish implements [outbox.Publisher].
func (p *Publisher) Publish(ctx context.Context, msgs []outbox.Message, settle func(i int, err error)) {
	batch := make([]outgoing, len(msgs))
	for i, m := range msgs {
		headers := make(amqp.Table, len(m.Headers))
		for k, v := range m.Headers {
			headers[k] = v
		}
		batch[i] = outgoing{p.Exchange, m.Type, amqp.Publishing{
			MessageId:    m.ID,
			Type:         m.Type,
			Timestamp:    m.OccurredAt,
			ContentType:  "application/json",
			DeliveryMode: amqp.Persistent,
			AppId:        p.AppID,
			Headers:      headers,
			Body:         m.Payload,
			// Queue.Split deals out by it.
			CorrelationId: m.AggregateID,
		}, func(err error) { settle(i, err) }}
	}
	p.publish(ctx, batch...)
}

// outgoing is a message on its way, and who is to be told once of its outcome.
type outgoing struct {
	exchange, key string
	msg           amqp.Publishing
	settle        func(error)
}

// publish sends messages, all in as few packets as they fit in.
func (p *Publisher) publish(ctx context.Context, batch ...outgoing) {
	p.sending.Lock()
	defer p.sending.Unlock()
	s := p.current.Load()
	if s == nil {
		for _, o := range batch {
			o.settle(outbox.ErrUnreachable)
		}
		return
	}
	sent := make([]string, 0, len(batch))
	s.raw.cork()
	for _, o := range batch {
		if err := s.send(ctx, o); err != nil {
			o.settle(err)
			continue
		}
		sent = append(sent, o.msg.MessageId)
	}
	if err := s.raw.uncork(); err != nil {
		s.end(err)
	}
	if p.Observe != nil && len(sent) > 0 {
		if err := p.Observe(ctx, outbox.StepSent, sent); err != nil {
			s.end(err)
		}
	}
}

// pubSession is a session in confirm mode with what is in flight on it.
type pubSession struct {
	*session
	confirmTimeout time.Duration
	confirms       chan amqp.Confirmation
	returns        chan amqp.Return

	// A session starts with one message and opens with its confirm. A broker in
	// alarm reads nothing, and would get a whole window of copies at each attempt
	// to reach it.
	opened   chan struct{}
	answered func()        // called at the first confirm
	slots    chan struct{} // one for each message in flight
	unblocks chan struct{} // closed while the broker is not blocked; guarded by mu

	mu       sync.Mutex
	inFlight []*flying // in the order of their tags, which are counted from 1
	ids      map[string]struct{}
	isOver   bool      // nothing may be added any more
	refused  time.Time // when the first nack came; zero if none did
}

// flying is a message without an answer yet.
type flying struct {
	id     string
	settle func(error)
	since  time.Time
	answer chan *amqp.DeferredConfirmation // one, once it is written; nil if that failed
}

func (p *Publisher) open(ctx context.Context) (*pubSession, error) {
	base, err := dial(ctx, p.URL, p.name(), p.connect)
	if err != nil {
		return nil, err
	}
	s := &pubSession{
		session:        base,
		confirmTimeout: cmp.Or(p.ConfirmTimeout, 15*time.Second),
		confirms:       base.ch.NotifyPublish(make(chan amqp.Confirmation, window)),
		returns:        base.ch.NotifyReturn(make(chan amqp.Return, window)),
		opened:         make(chan struct{}),
		slots:          make(chan struct{}, window),
		ids:            make(map[string]struct{}),
		unblocks:       make(chan struct{}),
	}
	close(s.unblocks)
	declare := p.declare
	if declare == nil {
		declare = func(ch *amqp.Channel) error {
			if err := ch.ExchangeDeclare(p.Exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
				return fmt.Errorf("declare exchange %s: %w", p.Exchange, err)
			}
			return nil
		}
	}
	err = declare(s.ch)
	if err == nil {
		err = s.ch.Confirm(false)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// send writes one message. An error means that it was not sent and will not be
// settled; otherwise it is, when there is an answer or when the session ends
// without one.
func (s *pubSession) send(ctx context.Context, o outgoing) error {
	if err := o.sendable(); err != nil {
		return err
	}
	if err := s.mayPublish(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	switch _, twice := s.ids[o.msg.MessageId]; {
	case s.isOver:
		s.mu.Unlock()
		<-s.slots
		return outbox.ErrUnreachable
	case twice:
		// A return names the message by this id alone.
		s.mu.Unlock()
		<-s.slots
		return fmt.Errorf("%w: a message with this id is in flight", outbox.ErrUnreachable)
	}
	// Before it is written: its confirm may be here before Publish returns.
	f := &flying{o.msg.MessageId, o.settle, time.Now(), make(chan *amqp.DeferredConfirmation, 1)}
	s.ids[f.id] = struct{}{}
	s.inFlight = append(s.inFlight, f)
	s.mu.Unlock()

	// The context is looked at above; past this point only the session's end
	// frees a publish that is stuck in the socket.
	answer, err := s.ch.PublishWithDeferredConfirm(o.exchange, o.key, true, false, o.msg)
	f.answer <- answer
	if err != nil {
		// Some of it may have left: the message stays in flight, and is settled as
		// unknown with all others when the session ends.
		s.failed(err)
	}
	return nil
}

// mayPublish waits for room in the window and for a broker that takes messages.
func (s *pubSession) mayPublish(ctx context.Context) error {
	if err := s.await(ctx, s.unblocked()); err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
	default:
		s.push()
		select {
		case s.slots <- struct{}{}:
		case <-s.over():
			return outbox.ErrUnreachable
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", outbox.ErrUnreachable, ctx.Err())
		}
	}
	if len(s.slots) > 1 {
		if err := s.await(ctx, s.opened); err != nil {
			<-s.slots
			return err
		}
	}
	// A process that was stopped may have missed its deadline before the timer
	// could say so.
	if deadline, ok := ctx.Deadline(); ctx.Err() != nil || (ok && !time.Now().Before(deadline)) {
		<-s.slots
		return fmt.Errorf("%w: too late to send", outbox.ErrUnreachable)
	}
	return nil
}

// push lets go of what is held back before a wait that it may be needed to end.
func (s *pubSession) push() {
	if err := s.raw.push(); err != nil {
		s.end(err)
	}
}

func (s *pubSession) await(ctx context.Context, what <-chan struct{}) error {
	select {
	case <-what:
		return nil
	default:
	}
	s.push()
	select {
	case <-what:
		return nil
	case <-s.over():
		return outbox.ErrUnreachable
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", outbox.ErrUnreachable, ctx.Err())
	}
}

// sendable refuses what the protocol cannot carry and would close the session.
func (o outgoing) sendable() error {
	for _, short := range [...]struct{ what, value string }{
		{"exchange", o.exchange}, {"routing key", o.key},
		{"message_id", o.msg.MessageId}, {"type", o.msg.Type}, {"correlation_id", o.msg.CorrelationId},
	} {
		if len(short.value) > 255 {
			return fmt.Errorf("%w: %s has %d bytes, AMQP carries 255", outbox.ErrRefused, short.what, len(short.value))
		}
	}
	if err := o.msg.Headers.Validate(); err != nil {
		return fmt.Errorf("%w: headers: %w", outbox.ErrRefused, err)
	}
	for name := range o.msg.Headers {
		if len(name) > 255 {
			return fmt.Errorf("%w: a header's name has %d bytes, AMQP carries 255", outbox.ErrRefused, len(name))
		}
	}
	return nil
}

// watchUntilOver pairs answers with messages until the session ends or ctx is
// done, closes it, and settles what had no answer.
func (s *pubSession) watchUntilOver(ctx context.Context, log *slog.Logger, st *status) {
	var answers sync.WaitGroup
	answers.Go(s.pairAnswers)
	tick := time.NewTicker(s.confirmTimeout / 15)
	defer tick.Stop()
	blocked := s.blocked
	for over := false; !over; {
		select {
		case <-s.over():
			over = true
		case <-ctx.Done():
			over = true
		case b, ok := <-blocked:
			switch {
			case !ok: // closed with the connection, whose end says why
				blocked = nil
			case b.Active:
				s.block()
				if st.problem("blocked by the broker: " + b.Reason) {
					log.Warn("the broker takes no messages", "reason", b.Reason)
				}
			default:
				s.unblock()
				st.connected()
				log.Info("the broker takes messages again")
			}
		case <-tick.C:
			// A blocked broker answers when it is not any more: what it has in its
			// socket would only be there twice. Whether it is still there, heartbeats tell.
			since, waiting := s.oldest()
			late := waiting && time.Since(since) > s.confirmTimeout
			switch outworn := s.outworn(); {
			case outworn && s.retire():
				s.end(errors.New("a queue has refused messages for a while: asking anew"))
			case outworn && !late:
				s.block() // nothing more is sent, so that what is in flight lands
			case late && (outworn || !s.isBlocked()):
				s.end(fmt.Errorf("no confirm within %s", s.confirmTimeout))
			}
		}
	}
	s.close()      // closes the channels of confirms and returns,
	answers.Wait() // so that this ends
}

// pairAnswers gives each message its answer, and those without one theirs when
// the session is over.
//
// The library's one reader puts a return into its channel before it looks at the
// confirm that follows, and the channel has room for all that is in flight. So
// when a confirm is here, the return of the same message, if there was one, can
// be read without waiting. Only this goroutine reads either.
func (s *pubSession) pairAnswers() {
	returned := make(map[string]error)
	drainReturns := func() {
		for {
			select {
			case r, ok := <-s.returns:
				if !ok {
					return
				}
				returned[r.MessageId] = fmt.Errorf("%w: %d %s: no queue is bound to exchange %q for %q",
					outbox.ErrUnroutable, r.ReplyCode, r.ReplyText, r.Exchange, r.RoutingKey)
			default:
				return
			}
		}
	}
	for c := range s.confirms {
		drainReturns()
		if c.DeliveryTag == 1 {
			s.answered()
		}
		f, ok := s.land()
		if !ok {
			continue
		}
		// What the confirm says is asked of the message's own: an answer for all up
		// to a tag covers those that had theirs before, and the library's list shows
		// them with that one in place of their own.
		answer := <-f.answer
		switch err, isReturned := returned[f.id]; {
		case isReturned:
			delete(returned, f.id)
			f.settle(err)
		case answer == nil:
			f.settle(fmt.Errorf("%w: not written as a whole", outbox.ErrUnknown))
		case answer.Acked():
			f.settle(nil)
		default:
			s.noteRefusal()
			f.settle(fmt.Errorf("%w: basic.nack", outbox.ErrRefused))
		}
	}
	// The library closes the channel when the session is over, and says nothing
	// of what is pending: only a return is proof of anything now.
	drainReturns()
	<-s.over() // the reason is on its way: it was told before the channel was closed
	lost := lostWith(s.reason())
	for _, f := range s.abandon() {
		if err, ok := returned[f.id]; ok {
			f.settle(err)
		} else {
			f.settle(lost)
		}
	}
}

// lostWith is the outcome of messages whose session ended for reason.
func lostWith(reason error) error {
	var e *amqp.Error
	if errors.As(reason, &e) && e.Server {
		switch e.Code {
		case amqp.AccessRefused, amqp.NotFound, amqp.PreconditionFailed,
			amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.UnexpectedFrame, amqp.NotImplemented:
			return fmt.Errorf("%w: %s", outbox.ErrMisconfigured, describe(e))
		}
	}
	return fmt.Errorf("%w: %w", outbox.ErrUnknown, reason)
}

// land takes the oldest message out of flight: confirms come in the order of
// tags, one for each.
func (s *pubSession) land() (*flying, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inFlight) == 0 {
		return nil, false
	}
	f := s.inFlight[0]
	s.inFlight[0] = nil // let go of it
	s.inFlight = s.inFlight[1:]
	delete(s.ids, f.id)
	<-s.slots
	select {
	case <-s.opened:
	default:
		close(s.opened)
	}
	return f, true
}

// abandon takes everything out of flight, for good.
func (s *pubSession) abandon() []*flying {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isOver = true
	left := s.inFlight
	s.inFlight = nil
	return left
}

// retire lets nothing be added any more if nothing is in flight. What was about
// to be sent is then known not to have been.
func (s *pubSession) retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isOver = s.isOver || len(s.inFlight) == 0
	return s.isOver
}

func (s *pubSession) noteRefusal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused.IsZero() {
		s.refused = time.Now()
	}
}

// outworn reports whether the session was refused a message some time ago. A
// quorum queue tells a channel that it is full, and some versions of RabbitMQ
// forget to say that it is not any more when its limit was lifted (seen on
// 3.10): the channel would then be refused for ever.
func (s *pubSession) outworn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.refused.IsZero() && time.Since(s.refused) > s.confirmTimeout
}

func (s *pubSession) oldest() (since time.Time, waiting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inFlight) == 0 {
		return time.Time{}, false
	}
	return s.inFlight[0].since, true
}

// unblocked returns a channel that is closed while the broker takes messages.
func (s *pubSession) unblocked() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unblocks
}

func (s *pubSession) isBlocked() bool {
	select {
	case <-s.unblocked():
		return false
	default:
		return true
	}
}

func (s *pubSession) block() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.unblocks:
		s.unblocks = make(chan struct{})
	default: // blocked already, for another reason
	}
}

func (s *pubSession) unblock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.unblocks:
	default:
		close(s.unblocks)
	}
	for _, f := range s.inFlight { // their wait for a confirm starts now
		f.since = time.Now()
	}
}
