package steps_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/internal/steps"
)

// message is a server-sent event as a client reads it.
type message struct{ Event, ID, Data string }

// patience is that of the server with its clients.
const patience = 50 * time.Millisecond

// watch opens the stream and returns a function that reads its next message.
func watch(t *testing.T, ring *steps.Ring, lastEventID string) (next func() (message, bool)) {
	t.Helper()
	srv := httptest.NewUnstartedServer(ring.Handler())
	// Limits that are right for every other request must not end a stream.
	srv.Config.ReadTimeout, srv.Config.WriteTimeout = patience, patience
	srv.Start()
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel) // before srv.Close, which waits for the stream
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Last-Event-ID", lastEventID)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if got, want := res.Header.Get("Content-Type"), "text/event-stream"; got != want {
		t.Fatalf("content type %q, want %q", got, want)
	}
	lines := bufio.NewScanner(res.Body)
	return func() (m message, ok bool) {
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "event":
				m.Event = value
			case "id":
				m.ID = value
			case "data":
				m.Data = value
			case "":
				if m != (message{}) {
					return m, true
				}
			}
		}
		return m, false
	}
}

// step reads the next message, which has to be a step.
func step(t *testing.T, next func() (message, bool)) steps.Step {
	t.Helper()
	m, ok := next()
	if !ok || m.Event != "" {
		t.Fatalf("got %+v (open: %t), want a step", m, ok)
	}
	var s steps.Step
	if err := json.Unmarshal([]byte(m.Data), &s); err != nil {
		t.Fatalf("data %q: %v", m.Data, err)
	}
	if got, want := m.ID, fmt.Sprint(s.Seq); got != want {
		t.Errorf("id %q, want %q as in the data", got, want)
	}
	return s
}

func observe(t *testing.T, ring *steps.Ring, name string, ids ...string) {
	t.Helper()
	if err := ring.Observe(t.Context(), name, ids); err != nil {
		t.Fatal(err)
	}
}

func TestStreamReplaysAndFollows(t *testing.T) {
	t.Parallel()
	ring := steps.New(8)
	before := time.Now()
	observe(t, ring, "relay.claimed", "a", "b")
	next := watch(t, ring, "")

	first, second := step(t, next), step(t, next)
	if want := (steps.Step{Seq: first.Seq, At: first.At, Step: "relay.claimed", ID: "a"}); !cmp.Equal(first, want) {
		t.Errorf("first step %+v, want %+v", first, want)
	}
	if first.At.Before(before) || first.At.After(time.Now()) {
		t.Errorf("the step is stamped %s, taken after %s", first.At, before)
	}
	if want := (steps.Step{Seq: first.Seq + 1, At: first.At, Step: "relay.claimed", ID: "b"}); !cmp.Equal(second, want) {
		t.Errorf("second step %+v, want %+v", second, want)
	}
	observe(t, ring, "relay.sent", "a")
	if got := step(t, next); got.Step != "relay.sent" || got.Seq != second.Seq+1 {
		t.Errorf("followed with %+v, want relay.sent as number %d", got, second.Seq+1)
	}
}

func TestStreamOutlivesTheServersTimeouts(t *testing.T) {
	t.Parallel()
	ring := steps.New(8)
	next := watch(t, ring, "")
	for i := range 8 {
		<-time.After(patience / 2)
		observe(t, ring, "relay.sent", fmt.Sprint(i))
		if got := step(t, next); got.ID != fmt.Sprint(i) {
			t.Fatalf("got %+v, want step %d", got, i)
		}
	}
}

func TestStreamResumesAfterLastEventID(t *testing.T) {
	t.Parallel()
	ring := steps.New(8)
	observe(t, ring, "relay.claimed", "a", "b", "c")
	seen := step(t, watch(t, ring, "not a number"))
	if got := step(t, watch(t, ring, fmt.Sprint(seen.Seq))); got.ID != "b" {
		t.Errorf("after step %q came %q, want b", seen.ID, got.ID)
	}
	// A number from the life before: nothing was dropped, everything is new.
	if got := step(t, watch(t, ring, fmt.Sprint(seen.Seq-1000))); got.ID != "a" {
		t.Errorf("after a restart came %q, want a", got.ID)
	}
}

func TestSlowReaderIsToldWhatItMissed(t *testing.T) {
	t.Parallel()
	ring := steps.New(4)
	observe(t, ring, "relay.claimed", "a", "b", "c", "d", "e", "f")
	next := watch(t, ring, "")
	if m, _ := next(); m.Event != "dropped" || m.Data != `{"dropped":2}` {
		t.Errorf("got %+v, want the event dropped with 2", m)
	}
	if got := step(t, next); got.ID != "c" {
		t.Errorf("then came %q, want the oldest that is left: c", got.ID)
	}
}

func TestCloseEndsStreams(t *testing.T) {
	t.Parallel()
	ring := steps.New(4)
	observe(t, ring, "relay.claimed", "a")
	next := watch(t, ring, "")
	step(t, next)
	ring.Close()
	if m, ok := next(); ok {
		t.Errorf("got %+v after Close, want the end", m)
	}
}

// The hook sits in the hot path of the relay and of the consumer.
func TestObserveDoesNotAllocate(t *testing.T) {
	ring := steps.New(100)
	ids := []string{"a", "b", "c"}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() { _ = ring.Observe(ctx, "relay.sent", ids) }); n != 0 {
		t.Errorf("%v allocations for each call, want none", n)
	}
}

func TestChainStopsAtFirstError(t *testing.T) {
	t.Parallel()
	var called []string
	hook := func(name string, err error) steps.Hook {
		return func(context.Context, string, []string) error { called = append(called, name); return err }
	}
	broken := errors.New("broken")
	err := steps.Chain(hook("a", nil), nil, hook("b", broken), hook("c", nil))(t.Context(), "relay.sent", nil)
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	if diff := cmp.Diff([]string{"a", "b"}, called); diff != "" {
		t.Errorf("called (-want +got):\n%s", diff)
	}
}

func BenchmarkObserve(b *testing.B) {
	ring := steps.New(0)
	ids := make([]string, 250)
	for b.Loop() {
		_ = ring.Observe(b.Context(), "consumer.committed", ids)
	}
}
