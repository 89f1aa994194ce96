// Package faults makes a service die, stall, wait or fail at a named step of the
// flow, on demand and over HTTP, so that a test can show what is true after it.
//
// It is for tests and workshops: mount its handler only where somebody asked
// for it, and only on a loopback address.
package faults

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// known are the steps at which a fault can be armed.
var known = []string{
	"order.committed", // order.StepCommitted; the services import this package
	outbox.StepClaimed, outbox.StepSent, outbox.StepConfirmed, outbox.StepSettled,
	rabbit.StepReceived, rabbit.StepCommitted, rabbit.StepAcked, rabbit.StepRetrying, rabbit.StepDeadLettered,
}

// Action is what a fault does.
type Action string

// The actions.
const (
	Crash Action = "crash" // SIGKILL to this process
	Stop  Action = "stop"  // SIGSTOP to this process; it goes on at SIGCONT
	Delay Action = "delay" // waits
	Error Action = "error" // the step fails
	Clock Action = "clock" // the wall clock of this process jumps; see internal/wrongclock
)

// Fault is something that is to happen at a step. A hit is one call at the step
// with an id that matches; one call may carry a whole batch of ids.
type Fault struct {
	Step   string   `json:"step"` // may be empty for Clock, which then acts at once
	Action Action   `json:"action"`
	Match  string   `json:"match,omitempty"` // part of an id; empty matches every id
	After  int      `json:"after,omitempty"` // hits to let pass first
	Times  int      `json:"times"`           // how often to act; defaults to 1
	Delay  Duration `json:"delay,omitzero"`  // for Delay
	Offset Duration `json:"offset,omitzero"` // for Clock, from the right time; may be negative, 0 sets it right

	Hits  int `json:"hits"`  // so far, whether it acted or not
	Acted int `json:"acted"` // so far
}

// Duration is a time.Duration that is written as people write it: "3s".
type Duration time.Duration

// MarshalText writes d as time.Duration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration accepts.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

func (f Fault) valid() error {
	switch {
	case f.Step == "" && f.Action != Clock:
		return fmt.Errorf("step is missing, want one of %s", strings.Join(known, ", "))
	case f.Step != "" && !slices.Contains(known, f.Step):
		return fmt.Errorf("unknown step %q, want one of %s", f.Step, strings.Join(known, ", "))
	case f.After < 0 || f.Times < 0:
		return fmt.Errorf("after is %d and times is %d, want neither below 0", f.After, f.Times)
	}
	switch f.Action {
	case Crash, Stop, Error:
	case Delay:
		if f.Delay <= 0 {
			return fmt.Errorf("delay is %s, want more than 0", time.Duration(f.Delay))
		}
	case Clock:
		if shiftClock == nil {
			return errors.New("this program has the clock of its machine; one that can be wrong is built with the flags of internal/wrongclock")
		}
	default:
		return fmt.Errorf("unknown action %q, want one of crash, stop, delay, error, clock", f.Action)
	}
	return nil
}

// hit counts one call at the step and reports whether the fault acts on it.
func (f *Fault) hit(step string, ids []string) bool {
	if f.Step != step || !slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(id, f.Match) }) {
		return false
	}
	f.Hits++
	if f.Hits <= f.After || f.Acted >= f.Times {
		return false
	}
	f.Acted++
	return true
}
