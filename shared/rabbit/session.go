package rabbit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	dialTimeout = 10 * time.Second
	openTimeout = 15 * time.Second // dial and declare everything
	// A peer that is silent for three heartbeats is gone.
	heartbeat    = 5 * time.Second
	closeTimeout = 2 * time.Second
	// Between attempts to connect: doubling, give or take a fifth.
	redialFirst = 100 * time.Millisecond
	redialCap   = 2 * time.Second
)

// session is one connection with one channel, thrown away whole when anything
// happens to either.
type session struct {
	conn *amqp.Connection
	ch   *amqp.Channel
	raw  *corkedConn

	// life is done when the session has ended, whoever ended it; its cause is why.
	life context.Context
	end  context.CancelCauseFunc // the first reason stands

	blocked chan amqp.Blocking
	watch   sync.WaitGroup
	opened  func() bool // ends that the context of dial closes the connection
}

// connector opens the socket of a session.
type connector func(ctx context.Context, network, addr string) (net.Conn, error)

// dial opens a session that shows as name in the broker's list of connections,
// over TCP unless connect is set. Until opened is called the end of ctx cuts the
// connection: the library's calls take no context, and a broker may be too slow
// to answer any of them.
func dial(ctx context.Context, brokerURL, name string, connect connector) (*session, error) {
	s := &session{}
	s.life, s.end = context.WithCancelCause(context.WithoutCancel(ctx))
	if connect == nil {
		connect = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	conn, err := amqp.DialConfig(brokerURL, amqp.Config{
		Heartbeat:  heartbeat,
		Properties: amqp.Table{"connection_name": name, "product": "baton"},
		Dial: func(network, addr string) (net.Conn, error) {
			c, err := connect(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			s.raw = &corkedConn{Conn: c}
			s.opened = context.AfterFunc(ctx, func() { _ = c.Close() })
			// For the handshake; the library lifts it afterwards.
			return s.raw, c.SetDeadline(time.Now().Add(dialTimeout))
		},
	})
	if err != nil {
		if s.raw != nil {
			_ = s.raw.Close() // the library may have left it open; nothing was done on it
		}
		return nil, withoutURL(err)
	}
	s.conn = conn
	ch, err := conn.Channel()
	if err != nil {
		s.hangUp()
		return nil, fmt.Errorf("open channel: %w", err)
	}
	s.ch = ch
	// Buffered, because the library's reader sends to them and must never wait.
	connClosed := conn.NotifyClose(make(chan *amqp.Error, 1))
	chClosed := ch.NotifyClose(make(chan *amqp.Error, 1))
	cancelled := ch.NotifyCancel(make(chan string, 1))
	s.blocked = conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	s.watch.Go(func() {
		select {
		case e := <-connClosed:
			s.end(closeReason(e))
		case e := <-chClosed:
			// When the connection goes, its channels go with the same reason.
			s.end(closeReason(e))
		case <-cancelled:
			s.end(errors.New("the broker cancelled the consumer: its queue was deleted or lost its leader"))
		case <-s.over():
		}
	})
	return s, nil
}

func closeReason(e *amqp.Error) error {
	if e == nil {
		return amqp.ErrClosed
	}
	return e
}

// failed ends the session because of an error of the library. ErrClosed only says
// that it is over already: the reason is on its way to the watcher.
func (s *session) failed(err error) {
	if errors.Is(err, amqp.ErrClosed) {
		<-s.over()
		return
	}
	s.end(err)
}

func (s *session) over() <-chan struct{} { return s.life.Done() }
func (s *session) reason() error         { return context.Cause(s.life) }

// close ends the session and waits until nothing of it runs. It takes no longer
// than closeTimeout and a little, even when the broker has stopped reading and a
// publish is stuck in the socket.
func (s *session) close() {
	s.end(amqp.ErrClosed)
	s.hangUp()
	s.watch.Wait()
}

func (s *session) hangUp() {
	cut := time.AfterFunc(closeTimeout+time.Second, func() { _ = s.raw.Close() })
	defer cut.Stop()
	// Says goodbye, so that acks on their way count. It fails when there is
	// nobody to say goodbye to, and then there is nothing left to do.
	_ = s.conn.CloseDeadline(time.Now().Add(closeTimeout))
	_ = s.raw.Close()
}

// keep opens sessions and has each used until ctx is done: open, use, throw
// away, wait a little. It logs when it loses the broker and when it has it
// again, and nothing in between; use reports to st that it is connected.
func keep(ctx context.Context, log *slog.Logger, st *status, open func(context.Context) (*session, error), use func(*session)) {
	said := ""
	for failures := 0; ctx.Err() == nil; {
		opening, cancel := context.WithTimeout(ctx, openTimeout)
		s, err := open(opening)
		if err == nil {
			s.opened()
		}
		cancel()
		if err == nil {
			if failures > 0 {
				log.Info("connected to the broker again", "failures", failures)
			}
			said = ""
			since := time.Now()
			use(s)
			s.close()
			err = s.reason()
			if time.Since(since) > redialCap {
				failures = 0 // else it is no better than one that did not open
			}
		}
		if ctx.Err() != nil {
			break
		}
		problem := describe(err)
		st.disconnected(problem)
		news := "unreachable" // once, whatever the reason says of ports
		if errors.As(err, new(*amqp.Error)) {
			news = problem
		}
		if news != said {
			said = news
			log.Warn("no session with the broker, trying again", "err", problem)
		}
		failures++
		wait := min(redialFirst<<min(failures-1, 10), redialCap)
		pause(ctx, time.Duration(float64(wait)*(0.8+0.4*rand.Float64())))
	}
	st.disconnected("stopped")
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// withoutURL keeps a URL that cannot be parsed out of the error, and any part of
// it: the cause alone may quote half a password.
func withoutURL(err error) error {
	if errors.As(err, new(*url.Error)) {
		return errors.New("the broker URL cannot be parsed; a password with special characters has to be percent-encoded")
	}
	return err
}

// describe says what is wrong and, where it is known, what to do about it.
func describe(err error) string {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	hint := ""
	switch e.Code {
	case amqp.AccessRefused:
		hint = "check the user, the password and the permissions of the vhost"
	case amqp.NotFound:
		hint = "start the service that owns it, or declare it; waiting"
	case amqp.PreconditionFailed:
		hint = "it exists with other arguments: drain and delete it, or start with the settings it was made with"
	case amqp.NotAllowed:
		hint = "check that the vhost exists and the user may use it"
	case amqp.CommandInvalid: // of what we declare, only the hash can be unknown
		hint = "enable the plugin rabbitmq_consistent_hash_exchange at the broker, or have one queue"
	default:
		return err.Error()
	}
	return fmt.Sprintf("%v (%s)", err, hint)
}

// State is how a publisher or consumer stands with the broker.
type State struct {
	Connected bool
	// Problem is empty when all is well, else what is wrong and what to do.
	Problem string
}

// status is a State that may be read while it changes.
type status struct {
	mu      sync.Mutex
	state   State
	changed chan struct{} // closed and renewed at each change
}

func (s *status) get() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.Connected && s.state.Problem == "" {
		return State{Problem: "not connected yet"}
	}
	return s.state
}

// watch returns a channel that is closed at the next change.
func (s *status) watch() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

func (s *status) set(state State) (different bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	different = s.state != state
	s.state = state
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
	return different
}

func (s *status) connected() { s.set(State{Connected: true}) }
func (s *status) problem(text string) (news bool) {
	return s.set(State{Connected: true, Problem: text})
}
func (s *status) disconnected(text string) (news bool) { return s.set(State{Problem: text}) }
