package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// startTimeout is how long a library may take to handle its first message.
const startTimeout = 30 * time.Second

// meter counts messages and takes the time from the first to the last.
type meter struct {
	want    int64
	handled atomic.Int64
	started chan struct{} // closed once first is set
	first   time.Time
	done    chan struct{} // closed once last is set
	last    time.Time
	failed  chan error
}

func newMeter(want int) *meter {
	return &meter{
		want:    int64(want),
		started: make(chan struct{}),
		done:    make(chan struct{}),
		failed:  make(chan error, 1),
	}
}

// add counts a message that has been handled for good: confirmed by the broker,
// or committed.
func (m *meter) add() {
	switch m.handled.Add(1) {
	case 1:
		m.first = time.Now()
		close(m.started)
	case m.want:
		m.last = time.Now()
		close(m.done)
	}
}

// fail ends the measurement. With healthy servers nothing fails, and a rate with
// failures in it would not be the library's.
func (m *meter) fail(err error) {
	select {
	case m.failed <- err:
	default: // the first is enough
	}
}

func (m *meter) count() int { return int(m.handled.Load()) }

// measure lets run work until all messages are handled or atMost is over since
// the first, and returns how many were in that time. Those that run finishes
// after it was told to stop count only in [meter.count].
func (m *meter) measure(ctx context.Context, atMost time.Duration, run func(context.Context) error) (n int, took time.Duration, err error) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	g.Go(func() error {
		err := run(working)
		if working.Err() == nil {
			m.fail(errors.Join(errors.New("it stopped by itself"), err))
			return nil
		}
		return err
	})
	n, took, err = m.wait(ctx, atMost)
	stop()
	if runErr := g.Wait(); err == nil && runErr != nil {
		err = fmt.Errorf("stop: %w", runErr)
	}
	return n, took, err
}

func (m *meter) wait(ctx context.Context, atMost time.Duration) (n int, took time.Duration, err error) {
	select {
	case <-m.started:
	case err := <-m.failed:
		return 0, 0, err
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	case <-time.After(startTimeout):
		return 0, 0, fmt.Errorf("nothing was handled within %s", startTimeout)
	}
	select {
	case <-m.done:
		return int(m.want), m.last.Sub(m.first), nil
	case <-time.After(time.Until(m.first.Add(atMost))):
		return m.count(), time.Since(m.first), nil
	case err := <-m.failed:
		return 0, 0, err
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}
