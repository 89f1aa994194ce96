package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// ErrInjected is wrapped by what an Error fault returns.
var ErrInjected = errors.New("injected fault")

// Set holds the faults that are armed in this process.
type Set struct {
	log    *slog.Logger
	stderr io.Writer
	signal func(Action) // replaced in tests that have to live on

	mu     sync.Mutex
	faults []*Fault
}

// New returns a set with no fault armed. A fault that acts is logged to log;
// nil means slog.Default().
func New(log *slog.Logger) *Set {
	return &Set{log: cmp.Or(log, slog.Default()), stderr: os.Stderr, signal: signalSelf}
}

// Arm adds f to what is to happen. A fault that could never act is an error.
func (s *Set) Arm(f Fault) (Fault, error) {
	f.Times, f.Hits, f.Acted = cmp.Or(f.Times, 1), 0, 0
	if err := f.valid(); err != nil {
		return Fault{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Step == "" { // a clock that is wrong from now on
		shiftClock(time.Duration(f.Offset))
		f.Acted = 1
	}
	s.faults = append(s.faults, &f)
	return f, nil
}

// List returns the armed faults, spent ones too, in the order they were armed.
func (s *Set) List() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Fault, len(s.faults))
	for i, f := range s.faults {
		list[i] = *f
	}
	return list
}

// Clear disarms everything and sets the clock right.
func (s *Set) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
	if shiftClock != nil {
		shiftClock(0)
	}
}

// Observe does what is armed for step, in the order it was armed. It is a hook
// of the libraries.
func (s *Set) Observe(ctx context.Context, step string, ids []string) error {
	for _, f := range s.due(step, ids) {
		if err := s.act(ctx, f, step, ids); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) due(step string, ids []string) []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []Fault
	for _, f := range s.faults {
		if f.hit(step, ids) {
			due = append(due, *f)
		}
	}
	return due
}

func (s *Set) act(ctx context.Context, f Fault, step string, ids []string) error {
	switch f.Action {
	case Crash, Stop:
		// One write, straight to the file: a log handler might hold it back, and
		// this process has no time left.
		fmt.Fprintf(s.stderr, "fault: %s at %s ids=%v\n", f.Action, step, ids)
		s.signal(f.Action)
		return nil
	case Delay:
		s.log.Warn("fault: delay", "step", step, "delay", time.Duration(f.Delay), "messages", len(ids))
		t := time.NewTimer(time.Duration(f.Delay))
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	case Clock:
		s.log.Warn("fault: clock", "step", step, "offset", time.Duration(f.Offset))
		shiftClock(time.Duration(f.Offset))
		return nil
	default: // Error: Arm lets nothing else in
		return fmt.Errorf("%w at %s", ErrInjected, step)
	}
}
