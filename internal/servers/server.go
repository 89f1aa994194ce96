package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Server is the life of one server, whatever it is and however it runs. Start,
// Stop, Kill and Restart may be called again and again, by one goroutine at a
// time; data and ports stay the same until Stop of a container.
type Server struct {
	title  string // for people: "PostgreSQL"
	cfg    Config
	run    runner
	quit   syscall.Signal                        // asks for an orderly end
	check  func(context.Context) (string, error) // ready? the answer is the version
	oldest string                                // version that Baton supports

	mu      sync.Mutex
	life    *life // nil before the first Start
	version string
	exited  chan error
}

// life is one run of the server's program, from launch to exit.
type life struct {
	ended  chan struct{}
	err    error // valid after ended
	wanted bool  // its end is ours, not news for Exited; guarded by Server.mu
}

// runner is where a server's program runs: a process or a container.
type runner interface {
	// prepare does what has to be done before launch, such as making an empty
	// database. It is called before every launch.
	prepare(ctx context.Context) error
	// started is told once the program is ready for clients.
	started() error
	// launch starts the program, which outlives ctx. The channel yields how it
	// ended, once.
	launch(ctx context.Context) (<-chan error, error)
	// signal reaches the program. SIGKILL ends it with all its children.
	signal(ctx context.Context, sig syscall.Signal) error
	// release ends and removes what is beside the program.
	release(ctx context.Context) error
	// log is the end of what the program has written.
	log(ctx context.Context) string
}

const (
	startPatience = 2 * time.Minute
	abortPatience = 10 * time.Second // for the end of a server that was to start
)

func newServer(title, oldest string, cfg Config, run runner, quit syscall.Signal, check func(context.Context) (string, error)) Server {
	return Server{title: title, oldest: oldest, cfg: cfg, run: run, quit: quit, check: check, exited: make(chan error, 1)}
}

// Start starts the server and returns when it is ready for clients. It does
// nothing if the server runs. If ctx ends first, the server is ended too, and
// Stop cleans up after it as after any other.
func (s *Server) Start(ctx context.Context) error {
	if s.current() != nil {
		return nil
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	s.cfg.say("starting %s", s.title)
	if err := s.run.prepare(ctx); err != nil {
		return fmt.Errorf("prepare %s: %w", s.title, err)
	}
	ended, err := s.run.launch(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.title, err)
	}
	l := s.begin(ended)
	version, err := s.awaitReady(ctx, l)
	if err == nil {
		err = s.run.started()
	}
	if err != nil {
		// ctx may be what failed, and the server has to end all the same; in
		// order if it can, since it may be repairing its data.
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortPatience)
		defer cancel()
		log := s.run.log(stopCtx)
		if endErr := s.end(stopCtx, s.quit); endErr != nil {
			err = errors.Join(err, endErr)
		}
		if log != "" {
			return fmt.Errorf("start %s: %w; the end of its log:\n%s", s.title, err, log)
		}
		return fmt.Errorf("start %s: %w", s.title, err)
	}
	s.mu.Lock()
	s.version, l.wanted = version, false
	s.mu.Unlock()
	if s.current() == nil { // between the check and wanted: nobody else would tell
		return fmt.Errorf("start %s: it ended as soon as it was ready", s.title)
	}
	s.cfg.say("%s is ready after %.1f s", strings.TrimSpace(s.title+" "+version), time.Since(begin).Seconds())
	return nil
}

func (s *Server) begin(ended <-chan error) *life {
	l := &life{ended: make(chan struct{}), wanted: true} // until it is ready, Start tells
	s.mu.Lock()
	s.life = l
	s.mu.Unlock()
	go func() { // ends with the program
		err := <-ended
		s.mu.Lock()
		defer s.mu.Unlock()
		l.err = err
		close(l.ended)
		if !l.wanted {
			select {
			case s.exited <- fmt.Errorf("%s ended by itself: %w", s.title, cmp.Or(err, errors.New("exit code 0"))):
			default: // the one before was not looked at; both say the same
			}
		}
	}()
	return l
}

func (s *Server) awaitReady(ctx context.Context, l *life) (version string, err error) {
	for {
		version, err := s.check(ctx)
		if err == nil && compareVersions(version, s.oldest) < 0 {
			return "", fmt.Errorf("it is version %s, and Baton needs %s or newer", version, s.oldest)
		}
		if err == nil {
			return version, nil
		}
		select {
		case <-l.ended:
			return "", fmt.Errorf("it ended at once: %w", cmp.Or(l.err, errors.New("exit code 0")))
		case <-ctx.Done():
			return "", fmt.Errorf("not ready: %w (%w)", err, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// current is the run that has not ended, or nil.
func (s *Server) current() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil {
		return nil
	}
	select {
	case <-s.life.ended:
		return nil
	default:
		return s.life
	}
}

// Stop ends the server in order, by force if ctx ends first, and everything it
// brought with it. A container is removed with its data; a process leaves its
// data in the Home.
func (s *Server) Stop(ctx context.Context) error {
	err := s.end(ctx, s.quit)
	if releaseErr := s.run.release(context.WithoutCancel(ctx)); releaseErr != nil {
		err = errors.Join(err, fmt.Errorf("clean up after %s: %w", s.title, releaseErr))
	}
	return err
}

// Kill ends the server and all its children by SIGKILL, as a power cut would.
// Start brings it back with the same ports and data.
func (s *Server) Kill() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	return s.end(ctx, syscall.SIGKILL)
}

// Crash is Kill as an accident: Exited tells of it, and whoever watches brings
// the server back.
func (s *Server) Crash(ctx context.Context) error { return s.signal(ctx, syscall.SIGKILL) }

// Freeze stops the server's program by SIGSTOP: it keeps what it holds and does
// nothing.
func (s *Server) Freeze(ctx context.Context) error { return s.signal(ctx, syscall.SIGSTOP) }

// Thaw lets a frozen program go on, by SIGCONT, whoever has stopped it.
func (s *Server) Thaw(ctx context.Context) error { return s.signal(ctx, syscall.SIGCONT) }

// signal does nothing to a server that does not run. Unlike most methods it may
// be called by any goroutine.
func (s *Server) signal(ctx context.Context, sig syscall.Signal) error {
	if s.current() == nil {
		return nil
	}
	if err := s.run.signal(ctx, sig); err != nil {
		return fmt.Errorf("%s to %s: %w", sig, s.title, err)
	}
	return nil
}

// Title is what people call the server, such as "PostgreSQL".
func (s *Server) Title() string { return s.title }

// Exited yields an error each time the server ended although nobody asked for
// it. Start brings it back.
func (s *Server) Exited() <-chan error { return s.exited }

// Version is what the server said it is, such as "15.10", once it has started.
func (s *Server) Version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// end sends sig and waits for the end; when ctx ends first, SIGKILL.
func (s *Server) end(ctx context.Context, sig syscall.Signal) error {
	l := s.current()
	if l == nil {
		return nil
	}
	s.mu.Lock()
	l.wanted = true
	s.mu.Unlock()
	if err := s.run.signal(ctx, sig); err != nil && ctx.Err() == nil {
		return fmt.Errorf("stop %s: %w", s.title, err)
	}
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
	}
	killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
	defer cancel()
	if err := s.run.signal(killCtx, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", s.title, err)
	}
	select {
	case <-l.ended:
		return fmt.Errorf("%s had to be killed: %w", s.title, ctx.Err())
	case <-killCtx.Done():
		return fmt.Errorf("%s does not end: %w", s.title, killCtx.Err())
	}
}
