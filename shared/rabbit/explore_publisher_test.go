package rabbit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

var silent = slog.New(slog.DiscardHandler)

// says is one thing that a broker says about messages in flight.
type says struct {
	what string // return, ack, nack, acks or nacks: the last two up to and with the message
	i    int
}

// answers is all that a broker says on one session, and how the session ends.
type answers struct {
	inFlight int
	said     []says
	end      string // "" if every message was answered
	burst    bool   // all of it at once, else each when the last was understood
}

func (a answers) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d in flight:", a.inFlight)
	for _, s := range a.said {
		fmt.Fprintf(&b, " %s(%d)", s.what, s.i)
	}
	return fmt.Sprintf("%s %s (burst: %t)", b.String(), a.end, a.burst)
}

// ends are the ways of a session to end with messages unanswered, and what those
// are then.
var ends = map[string]error{
	"channel closed, 404":       outbox.ErrMisconfigured,
	"channel closed, 406":       outbox.ErrMisconfigured,
	"channel closed, 311":       outbox.ErrUnknown, // content too large: not in the list of what a person has to mend
	"connection closed, 320":    outbox.ErrUnknown,
	"socket cut":                outbox.ErrUnknown,
	"silence":                   outbox.ErrUnknown, // heartbeats go on
	"silence, then Run is over": outbox.ErrUnknown,
}

// everyAnswer goes through all orders of returns, acks and nacks, single and
// multiple, for n messages in flight, with every end after each of them. A return
// comes before the answer of its message, as a broker sends it.
func everyAnswer(n int) iter.Seq[answers] {
	return func(yield func(answers) bool) {
		answered, returned := make([]bool, n), make([]bool, n)
		var said []says
		var next func() bool
		try := func(s says) bool {
			said = append(said, s)
			ok := next()
			said = said[:len(said)-1]
			return ok
		}
		next = func() bool {
			var open []int
			for i := range n {
				if !answered[i] {
					open = append(open, i)
				}
			}
			ending := []string{""}
			if len(open) > 0 {
				ending = slices.Sorted(keys(ends))
			}
			for _, end := range ending {
				for _, burst := range []bool{false, true} {
					if !yield(answers{n, slices.Clone(said), end, burst}) {
						return false
					}
				}
			}
			for nth, i := range open {
				if !returned[i] {
					returned[i] = true
					ok := try(says{"return", i})
					returned[i] = false
					if !ok {
						return false
					}
				}
				answered[i] = true
				ok := try(says{"ack", i}) && try(says{"nack", i})
				answered[i] = false
				if !ok {
					return false
				}
				if nth == 0 {
					continue // no more than itself
				}
				for _, j := range open[:nth+1] {
					answered[j] = true
				}
				ok = try(says{"acks", i}) && try(says{"nacks", i})
				for _, j := range open[:nth+1] {
					answered[j] = false
				}
				if !ok {
					return false
				}
			}
			return true
		}
		next()
	}
}

func keys[V any](m map[string]V) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// wants returns what must become of each message. Confirms come to us in the
// order of tags: one that overtakes another is known when the other is, and not
// at all if that never comes.
func (a answers) wants() []error {
	answered, returned := make([]error, a.inFlight), make([]bool, a.inFlight)
	confirmed := make([]bool, a.inFlight)
	for _, s := range a.said {
		from := s.i
		if s.what == "acks" || s.what == "nacks" {
			from = 0
		}
		for i := from; i <= s.i; i++ {
			switch {
			case s.what == "return":
				returned[i] = true
			case !confirmed[i]:
				confirmed[i] = true
				if strings.HasPrefix(s.what, "nack") {
					answered[i] = outbox.ErrRefused
				}
			}
		}
	}
	want := make([]error, a.inFlight)
	known := true
	for i := range want {
		known = known && confirmed[i]
		switch {
		case returned[i]:
			want[i] = outbox.ErrUnroutable
		case known:
			want[i] = answered[i]
		default:
			want[i] = ends[a.end]
		}
	}
	return want
}

// B20, B23, B24, B25 in every order: a message is confirmed only by a confirm of
// its own without a return, one that was returned is unroutable whatever comes
// after it, and each has exactly one outcome, however the session ends.
func TestEveryOrderOfAnswers(t *testing.T) { // not parallel: others look at a real clock meanwhile
	for n, limit := range map[int]int{1: 100, 2: 600, 3: 500, 4: 500} {
		t.Run(fmt.Sprint(n, " in flight"), func(t *testing.T) {
			testenv.Explore(t, everyAnswer(n), limit, func(t *testing.T, a answers) {
				synctest.Test(t, func(t *testing.T) { a.run(t) })
			})
		})
	}
}

// Answers for all up to a tag that cover one which had its own before: the
// client library reports the later answer for it, a lost message if that is an
// ack. Found by TestEveryOrderOfAnswers.
func TestLaterAnswerForManyChangesNothing(t *testing.T) {
	t.Parallel()
	for _, said := range [][]says{
		{{"nack", 1}, {"acks", 2}},
		{{"ack", 1}, {"nacks", 2}},
		{{"nack", 2}, {"acks", 1}, {"acks", 3}},
	} {
		for _, burst := range []bool{false, true} {
			a := answers{inFlight: said[len(said)-1].i + 1, said: said, burst: burst}
			synctest.Test(t, func(t *testing.T) { a.run(t) })
		}
	}
}

func (a answers) run(t *testing.T) {
	var mu sync.Mutex
	var line *link
	var sent []published // the first one opens the session
	w := &wire{onPublish: func(l *link, p published) {
		mu.Lock()
		defer mu.Unlock()
		line = l
		if sent = append(sent, p); len(sent) == 1 {
			l.ack(p.tag, false)
		}
	}}
	p := &Publisher{URL: "amqp://guest:guest@broker/", Exchange: "orders.events", Logger: silent, connect: w.connect}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	defer func() { cancel(); running.Wait(); w.links.Wait() }()
	if err := p.Ready(ctx); err != nil {
		t.Fatal(err)
	}

	msgs := messages("m", "order.created", a.inFlight+1)
	got := make([][]error, len(msgs))
	settled := make(chan struct{}, 4*len(msgs))
	p.Publish(ctx, msgs, func(i int, err error) {
		mu.Lock()
		defer mu.Unlock()
		got[i] = append(got[i], err)
		settled <- struct{}{}
	})
	synctest.Wait()
	w.refuseConnections() // what is sent again is the relay's business
	if len(sent) != len(msgs) {
		t.Fatalf("%s: %d messages arrived", a, len(sent))
	}

	for _, s := range a.said {
		m := sent[s.i+1]
		switch s.what {
		case "return":
			line.giveBack(m)
		case "ack", "acks":
			line.ack(m.tag, s.what == "acks")
		case "nack", "nacks":
			line.nack(m.tag, s.what == "nacks")
		}
		if !a.burst {
			synctest.Wait()
		}
	}
	switch a.end {
	case "channel closed, 404":
		line.closeChannel(amqp.NotFound, "NOT_FOUND")
	case "channel closed, 406":
		line.closeChannel(amqp.PreconditionFailed, "PRECONDITION_FAILED")
	case "channel closed, 311":
		line.closeChannel(amqp.ContentTooLarge, "CONTENT_TOO_LARGE")
	case "connection closed, 320":
		line.closeConnection(amqp.ConnectionForced, "CONNECTION_FORCED")
	case "socket cut":
		line.hangUp()
	case "silence, then Run is over":
		synctest.Wait()
		cancel()
	}
	for range msgs {
		select {
		case <-settled:
		case <-time.After(time.Minute):
			t.Fatalf("%s: no outcome for some of %v", a, got)
		}
	}
	cancel()
	running.Wait()
	if st := p.State(); st.Connected {
		t.Errorf("%s: connected after Run", a)
	}
	for i, want := range append([]error{nil}, a.wants()...) {
		if len(got[i]) != 1 || !errors.Is(got[i][0], want) {
			t.Errorf("%s: message %d became %v, want %v", a, i-1, got[i], want)
		}
	}
}
