package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

func TestMain(m *testing.M) {
	testenv.SkipExamplesWithoutServers()
	goleak.VerifyTestMain(m)
}

// table is a fresh outbox table in a schema of its own.
func table(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := testenv.Schema(t)
	exec(t, db, outbox.Schema)
	return db
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", strings.TrimSpace(sql), err)
	}
}

func query[T any](t *testing.T, db *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

func message(aggregate string, sequence int64) outbox.Message {
	return outbox.Message{
		ID: fmt.Sprintf("%s-%d", aggregate, sequence), Type: "order.created", AggregateID: aggregate, Sequence: sequence,
		OccurredAt: time.Date(2026, 7, 15, 10, 0, 0, 0, time.UTC), Payload: []byte(`{"amount": 199.00}`),
	}
}

// enqueue commits n messages with ids m00001-1 … of as many aggregates.
func enqueue(t *testing.T, db *pgxpool.Pool, prefix string, n int) {
	t.Helper()
	msgs := make([]outbox.Message, n)
	for i := range msgs {
		msgs[i] = message(fmt.Sprintf("%s%05d", prefix, i+1), 1)
	}
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return outbox.Enqueue(t.Context(), tx, msgs...) }); err != nil {
		t.Fatal(err)
	}
}

// scripted is the edge that must misbehave on cue: a broker whose answer to each
// message is a function. It counts what was sent.
type scripted struct {
	answer func(m outbox.Message, nth int) error // nth time this id is sent, from 1; nil confirms

	mu   sync.Mutex
	sent []string
	seen map[string]int
}

// errDropped is the answer that never comes.
var errDropped = errors.New("no answer")

func (p *scripted) Ready(ctx context.Context) error { return ctx.Err() }

func (p *scripted) Publish(ctx context.Context, msgs []outbox.Message, settle func(int, error)) {
	for i, m := range msgs {
		if ctx.Err() != nil {
			settle(i, outbox.ErrUnreachable)
			continue
		}
		p.mu.Lock()
		if p.seen == nil {
			p.seen = make(map[string]int)
		}
		p.sent = append(p.sent, m.ID)
		p.seen[m.ID]++
		nth := p.seen[m.ID]
		p.mu.Unlock()
		var err error
		if p.answer != nil {
			err = p.answer(m, nth)
		}
		if !errors.Is(err, errDropped) {
			settle(i, err)
		}
	}
}

func (p *scripted) times(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[id]
}

func (p *scripted) ids() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sent)
}

// run starts r and stops it when the test ends, or earlier by the returned func.
func run(t *testing.T, r *outbox.Relay) (stop func()) {
	t.Helper()
	if r.Logger == nil {
		r.Logger = testenv.Logger(t)
	}
	if r.Poll == 0 {
		r.Poll = 20 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// eventually waits until count rows are in status.
func eventually(t *testing.T, db *pgxpool.Pool, status string, count int) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, fmt.Sprintf("%d rows %s", count, status), func() error {
		got := query[string](t, db, `select status || '=' || count(*) from outbox_messages group by status order by 1`)
		if !slices.Contains(got, fmt.Sprintf("%s=%d", status, count)) {
			return fmt.Errorf("rows: %v", got)
		}
		return nil
	})
}

func TestEnqueueIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	db := table(t)
	fail := errors.New("the order did not work out")
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if err := outbox.Enqueue(t.Context(), tx, message("A", 1)); err != nil {
			return err
		}
		return fail
	})
	if !errors.Is(err, fail) {
		t.Fatalf("got %v", err)
	}
	if n := query[int](t, db, `select count(*) from outbox_messages`)[0]; n != 0 {
		t.Fatalf("%d messages of a transaction that was rolled back", n)
	}
	b := &pgx.Batch{}
	if err := outbox.Queue(b, message("A", 1)); err != nil {
		t.Fatal(err)
	}
	if err := outbox.QueueIf(b, `m.aggregate_id = 'B'`, message("A", 2), message("B", 1)); err != nil {
		t.Fatal(err)
	}
	if err := db.SendBatch(t.Context(), b).Close(); err != nil {
		t.Fatal(err)
	}
	got := query[string](t, db, `select event_id || ' ' || status || ' ' || payload from outbox_messages order by 1`)
	want := []string{`A-1 Pending {"amount": 199.00}`, `B-1 Pending {"amount": 199.00}`}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestEnqueueRefusesWhatNoBrokerCouldCarry(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	for name, spoil := range map[string]func(*outbox.Message){
		"no id":          func(m *outbox.Message) { m.ID = "" },
		"long id":        func(m *outbox.Message) { m.ID = long },
		"no type":        func(m *outbox.Message) { m.Type = "" },
		"long type":      func(m *outbox.Message) { m.Type = long },
		"no aggregate":   func(m *outbox.Message) { m.AggregateID = "" },
		"long aggregate": func(m *outbox.Message) { m.AggregateID = strings.Repeat("a", 256) },
		"sequence 0":     func(m *outbox.Message) { m.Sequence = 0 },
		"no time":        func(m *outbox.Message) { m.OccurredAt = time.Time{} },
		"long header":    func(m *outbox.Message) { m.Headers = map[string]string{long: ""} },
		"much headers":   func(m *outbox.Message) { m.Headers = map[string]string{"x": strings.Repeat("x", 65<<10)} },
	} {
		m := message("A", 1)
		spoil(&m)
		if err := outbox.Queue(&pgx.Batch{}, message("B", 1), m); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Article A, row A10: the states cannot contradict each other.
func TestConstraintsHoldTheStatesTogether(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 1)
	for sql, want := range map[string]string{
		`update outbox_messages set status = 'Sent'`:                        "23514",
		`update outbox_messages set status = 'Published'`:                   "23514",
		`update outbox_messages set published_at = now()`:                   "23514",
		`update outbox_messages set status = 'Failed'`:                      "23514",
		`update outbox_messages set status = 'Processing', locked_by = 'x'`: "23514",
		`update outbox_messages set locked_by = 'x', locked_until = now()`:  "23514",
		`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at)
		   values ('other', 'm00001', 1, 't', '{}', now())`: "23505",
	} {
		_, err := db.Exec(t.Context(), sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != want {
			t.Errorf("%s: %v, want SQLSTATE %s", sql, err, want)
		}
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	type after struct {
		Status         string
		Attempts       int
		Claims         int
		Later          bool // not due at once
		LastError      string
		Locked, Failed bool
	}
	for name, tt := range map[string]struct {
		answer error
		want   after
	}{
		"confirmed":  {nil, after{Status: "Published"}},
		"unroutable": {outbox.ErrUnroutable, after{Status: "Pending", Attempts: 1, Later: true, LastError: "unroutable"}},
		"refused":    {outbox.ErrRefused, after{Status: "Pending", Attempts: 1, Later: true, LastError: "refused"}},
		"unknown":    {outbox.ErrUnknown, after{Status: "Pending", Claims: 1, Later: true, LastError: "outcome unknown"}},
		"misconfigured": {outbox.ErrMisconfigured,
			after{Status: "Pending", Claims: 1, Later: true, LastError: "broker misconfigured"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := table(t)
			enqueue(t, db, "m", 1)
			p := &scripted{answer: func(outbox.Message, int) error { return tt.answer }}
			stop := run(t, &outbox.Relay{DB: db, Publisher: p, Backoff: time.Hour, BackoffCap: time.Hour, Resend: time.Hour})
			testenv.Eventually(t, 10*time.Second, "an outcome", func() error {
				if n := query[int](t, db, `select count(*) from outbox_messages where status = 'Published' or last_error is not null`)[0]; n != 1 {
					return errors.New("none yet")
				}
				return nil
			})
			stop()
			var got after
			err := db.QueryRow(t.Context(), `select status, attempt_count, claim_count, next_attempt_at > now() + interval '1 minute',
				coalesce(last_error, ''), locked_by is not null, failed_at is not null from outbox_messages`).
				Scan(&got.Status, &got.Attempts, &got.Claims, &got.Later, &got.LastError, &got.Locked, &got.Failed)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestUnreachableIsAsIfNotClaimed(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 3)
	p := &scripted{answer: func(_ outbox.Message, nth int) error {
		if nth < 30 {
			return outbox.ErrUnreachable
		}
		return nil
	}}
	r := &outbox.Relay{DB: db, Publisher: p}
	run(t, r)
	eventually(t, db, "Published", 3)
	if got := r.Counts().GivenBack.Load(); got != 3*29 {
		t.Errorf("%d given back, want %d", got, 3*29)
	}
	if n := query[int](t, db, `select count(*) from outbox_messages where attempt_count > 0`)[0]; n != 0 {
		t.Errorf("%d rows charged for a broker that was away", n)
	}
}

// B07, B09, A23: rows that cannot be sent do not hold up the others, wait longer
// each time, and end as Failed with their reason.
func TestUnroutableRowsFailAfterTheBudgetAndBlockNobody(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "bad", 15)
	enqueue(t, db, "good", 20)
	p := &scripted{answer: func(m outbox.Message, _ int) error {
		if strings.HasPrefix(m.ID, "bad") {
			return outbox.ErrUnroutable
		}
		return nil
	}}
	r := &outbox.Relay{DB: db, Publisher: p, BatchSize: 10, Backoff: 10 * time.Millisecond, Budget: 5}
	run(t, r)
	eventually(t, db, "Published", 20)
	eventually(t, db, "Failed", 15)
	for i := 1; i <= 15; i++ {
		if n := p.times(fmt.Sprintf("bad%05d-1", i)); n != 5 {
			t.Errorf("bad row %d was sent %d times, want 5", i, n)
		}
	}
	if got := r.Counts().Failed.Load(); got != 15 {
		t.Errorf("counted %d failed, want 15", got)
	}
	rows, err := outbox.List(t.Context(), db, "Failed", 100)
	if err != nil || len(rows) != 15 || rows[0].LastError != "unroutable" {
		t.Errorf("list: %v %+v", err, rows)
	}
	ids, err := outbox.Requeue(t.Context(), db, "bad00001-1")
	if err != nil || len(ids) != 1 {
		t.Errorf("requeue: %v %v", ids, err)
	}
	if ids, err = outbox.Discard(t.Context(), db, "bad00002-1", "good00001-1"); err != nil || !slices.Equal(ids, []string{"bad00002-1"}) {
		t.Errorf("discard: %v %v", ids, err)
	}
}

// B05, A15: relays that start at the same moment share the rows and send each
// once.
func TestRelaysShareTheRows(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 2000)
	var all []*scripted
	for range 3 {
		p := &scripted{}
		all = append(all, p)
		run(t, &outbox.Relay{DB: db, Publisher: p, BatchSize: 50})
	}
	eventually(t, db, "Published", 2000)
	total := 0
	for i, p := range all {
		n := len(p.ids())
		total += n
		t.Logf("relay %d sent %d", i+1, n)
	}
	if total != 2000 {
		t.Errorf("%d sent, want 2000", total)
	}
}

// B01, A17, A18: a relay that comes back after its lease changes nothing.
func TestLateOutcomeChangesNothing(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 1)
	hold := make(chan struct{})
	sent := make(chan struct{})
	slow := &scripted{answer: func(outbox.Message, int) error { close(sent); <-hold; return outbox.ErrUnroutable }}
	// Its renewals fail, as those of a process that is stopped.
	a := &outbox.Relay{DB: deaf{db}, Publisher: slow, Instance: "a", Lease: 200 * time.Millisecond}
	run(t, a)
	<-sent
	run(t, &outbox.Relay{DB: db, Publisher: &scripted{}, Instance: "b"})
	eventually(t, db, "Published", 1)
	before := query[string](t, db, `select published_at::text || attempt_count from outbox_messages`)
	close(hold)
	testenv.Eventually(t, 10*time.Second, "the late outcome", func() error {
		if a.Counts().LeaseLost.Load() != 1 {
			return errors.New("not counted")
		}
		return nil
	})
	if after := query[string](t, db, `select published_at::text || attempt_count from outbox_messages`); !slices.Equal(before, after) {
		t.Errorf("row changed from %v to %v", before, after)
	}
}

// deaf is a database that does not hear renewals.
type deaf struct{ *pgxpool.Pool }

func (d deaf) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "as mine (event_id, claim)") {
		return nil, errors.New("not heard")
	}
	return d.Pool.Query(ctx, sql, args...)
}

// B06, A20: a batch that takes longer than its lease is renewed, and no other
// relay sends any of it.
func TestLeaseIsRenewedWhileInHand(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 300)
	slow := &scripted{answer: func(outbox.Message, int) error { <-time.After(25 * time.Millisecond); return nil }}
	other := &scripted{}
	run(t, &outbox.Relay{DB: db, Publisher: slow, BatchSize: 300, Lease: 6 * time.Second}) // needs 7.5 s and more
	testenv.Eventually(t, 10*time.Second, "the first send", func() error {
		if len(slow.ids()) == 0 {
			return errors.New("nothing sent")
		}
		return nil
	})
	run(t, &outbox.Relay{DB: db, Publisher: other})
	eventually(t, db, "Published", 300)
	if n := len(other.ids()); n != 0 {
		t.Errorf("another relay sent %d messages whose claim was alive", n)
	}
}

// A20, A21: without renewals sending stops before the lease is over.
func TestSendingStopsWhenTheClaimCannotBeTrusted(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 300) // three looks at the clock
	start := time.Now()
	var last time.Time
	p := &scripted{answer: func(m outbox.Message, nth int) error {
		<-time.After(10 * time.Millisecond)
		if nth == 1 {
			last = time.Now()
		}
		return nil
	}}
	lease := 1500 * time.Millisecond
	stop := run(t, &outbox.Relay{DB: deaf{db}, Publisher: p, BatchSize: 300, Lease: lease, Poll: time.Hour})
	testenv.Eventually(t, 20*time.Second, "what was not sent to be given back", func() error {
		if n := query[int](t, db, `select count(*) from outbox_messages where status = 'Pending' and claim_count = 0`)[0]; n == 0 {
			return errors.New("none")
		}
		return nil
	})
	stop()
	if took := last.Sub(start); took > lease {
		t.Errorf("still sent %s after the claim, lease %s", took, lease)
	}
}

// The guard: whoever sends the killer dies without a word. The others leave, and
// the killer ends as Failed.
func TestRowThatKillsItsRelay(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 500)
	const killer = "m00250-1"
	deaths := 0
	for {
		life := newLife(db)
		p := &scripted{answer: func(m outbox.Message, _ int) error {
			if m.ID == killer {
				life.end()
			}
			if life.ended() {
				return errDropped
			}
			return nil
		}}
		r := &outbox.Relay{DB: life, Publisher: p, Lease: 300 * time.Millisecond, Drain: time.Millisecond}
		stop := run(t, r)
		testenv.Eventually(t, 60*time.Second, "death or the end", func() error {
			if life.ended() {
				return nil
			}
			if n := query[int](t, db, `select count(*) from outbox_messages where status in ('Published', 'Failed')`)[0]; n == 500 {
				return nil
			}
			return errors.New("neither")
		})
		ended := life.ended()
		stop()
		if !ended {
			break
		}
		if deaths++; deaths > 20 {
			t.Fatal("it kills for ever")
		}
	}
	eventually(t, db, "Published", 499)
	eventually(t, db, "Failed", 1)
	if got := query[string](t, db, `select event_id from outbox_messages where status = 'Failed' and last_error like 'kills its relay%'`); !slices.Equal(got, []string{killer}) {
		t.Errorf("failed: %v", got)
	}
	if deaths < 10 || deaths > 12 { // ten alone, and before that up to two in company
		t.Errorf("it killed %d relays, want 10 to 12", deaths)
	}
}

// life is a database connection that dies with its process.
type life struct {
	*pgxpool.Pool
	dead chan struct{}
	once sync.Once
}

func newLife(db *pgxpool.Pool) *life { return &life{Pool: db, dead: make(chan struct{})} }
func (l *life) end()                 { l.once.Do(func() { close(l.dead) }) }
func (l *life) ended() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

func (l *life) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if l.ended() {
		return nil, errors.New("dead")
	}
	return l.Pool.Query(ctx, sql, args...)
}

// A message the broker closes the channel for is found, by being sent alone, and
// does not take the others with it.
func TestMisconfiguredMessageIsFoundAlone(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 20)
	const culprit = "m00007-1"
	var mu sync.Mutex
	inFlight := 0
	var p outbox.Publisher = publisherFunc(func(_ context.Context, msgs []outbox.Message, settle func(int, error)) {
		mu.Lock()
		defer mu.Unlock()
		inFlight = len(msgs)
		var err error
		for _, m := range msgs {
			if m.ID == culprit { // the channel closes: nobody gets an answer
				err = fmt.Errorf("%w: 404", outbox.ErrMisconfigured)
			}
		}
		for i := range msgs {
			settle(i, err)
		}
	})
	run(t, &outbox.Relay{DB: db, Publisher: p, Resend: 10 * time.Millisecond, Backoff: 10 * time.Millisecond, Budget: 3, PauseCap: 50 * time.Millisecond})
	eventually(t, db, "Published", 19)
	eventually(t, db, "Failed", 1)
	if got := query[string](t, db, `select event_id from outbox_messages where status = 'Failed'`); !slices.Equal(got, []string{culprit}) {
		t.Errorf("failed: %v", got)
	}
	if inFlight != 1 {
		t.Errorf("the last send had %d in flight, want 1", inFlight)
	}
}

// The pause of a relay whose broker refuses to be used ends with the first
// message that it takes, and not when it would have been over.
func TestMisconfiguredEndsWithTheFirstConfirm(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 20)
	p := &scripted{answer: func(_ outbox.Message, nth int) error {
		if nth == 1 {
			return outbox.ErrMisconfigured
		}
		return nil
	}}
	// Each of the first claims meets a closed channel, so that the pause is long
	// when the first message is confirmed.
	run(t, &outbox.Relay{DB: db, Publisher: p, BatchSize: 2, Resend: time.Millisecond, PauseCap: 2 * time.Second})
	eventually(t, db, "Published", 20)
}

type publisherFunc func(context.Context, []outbox.Message, func(int, error))

func (publisherFunc) Ready(ctx context.Context) error { return ctx.Err() }
func (f publisherFunc) Publish(ctx context.Context, msgs []outbox.Message, settle func(int, error)) {
	f(ctx, msgs, settle)
}

func TestOrderedSendsAnAggregateInSequence(t *testing.T) {
	t.Parallel()
	db := table(t)
	var msgs []outbox.Message
	for seq := int64(5); seq >= 1; seq-- { // stored backwards
		for a := range 20 {
			msgs = append(msgs, message(fmt.Sprintf("agg%02d", a), seq))
		}
	}
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return outbox.Enqueue(t.Context(), tx, msgs...) }); err != nil {
		t.Fatal(err)
	}
	p := &scripted{answer: func(m outbox.Message, nth int) error {
		switch {
		case m.ID == "agg03-2":
			return outbox.ErrUnroutable
		case nth == 1 && m.Sequence == 3:
			return outbox.ErrUnknown
		}
		return nil
	}}
	run(t, &outbox.Relay{DB: db, Publisher: p, Ordered: true, Budget: 1, Resend: 10 * time.Millisecond, Poll: 10 * time.Millisecond})
	run(t, &outbox.Relay{DB: db, Publisher: p, Ordered: true, Budget: 1, Resend: 10 * time.Millisecond, Poll: 10 * time.Millisecond})
	eventually(t, db, "Published", 96) // all but three of agg03, and its failed one
	eventually(t, db, "Failed", 1)
	stats, err := outbox.ReadStats(t.Context(), db)
	if err != nil || stats.Blocked != 1 || stats.Failed != 1 || stats.Pending != 3 {
		t.Errorf("stats %+v %v", stats, err)
	}
	last := map[string]string{}
	for _, id := range p.ids() {
		aggregate, sequence, _ := strings.Cut(id, "-")
		if sequence < last[aggregate] {
			t.Errorf("%s sent after sequence %s", id, last[aggregate])
		}
		last[aggregate] = sequence
	}
	if _, err := outbox.Discard(t.Context(), db, "agg03-2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, db, "Published", 99)
}

// The committing process wakes its own relay: nothing waits for the poll.
func TestWakeEndsTheWait(t *testing.T) {
	t.Parallel()
	db := table(t)
	r := &outbox.Relay{DB: db, Publisher: &scripted{}, Poll: time.Hour}
	run(t, r)
	enqueue(t, db, "m", 1)
	r.Wake()
	eventually(t, db, "Published", 1)
}

// B14: a transaction that commits late is not passed over, whatever its ids.
func TestLateCommitIsSent(t *testing.T) {
	t.Parallel()
	db := table(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := outbox.Enqueue(t.Context(), tx, message("a", 1)); err != nil {
		t.Fatal(err)
	}
	run(t, &outbox.Relay{DB: db, Publisher: &scripted{}})
	enqueue(t, db, "b", 1)
	eventually(t, db, "Published", 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, db, "Published", 2)
}

// An older row fails in place of being sent: consumers may have forgotten it.
func TestTooOldIsFailed(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 2)
	exec(t, db, `update outbox_messages set created_at = now() - interval '8 days' where event_id = 'm00001-1'`)
	p := &scripted{}
	run(t, &outbox.Relay{DB: db, Publisher: p})
	eventually(t, db, "Published", 1)
	eventually(t, db, "Failed", 1)
	if n := p.times("m00001-1"); n != 0 {
		t.Errorf("sent %d times", n)
	}
}

// B13: only what was published long ago is pruned.
func TestPrune(t *testing.T) {
	t.Parallel()
	db := table(t)
	enqueue(t, db, "m", 1509)
	exec(t, db, `update outbox_messages set status = 'Published', published_at = now() - interval '30 days' where event_id <= 'm01503-1'`)
	exec(t, db, `update outbox_messages set status = 'Failed', failed_at = now() - interval '400 days', created_at = now() - interval '400 days'
		where event_id in ('m01504-1', 'm01505-1')`)
	exec(t, db, `update outbox_messages set created_at = now() - interval '400 days' where event_id in ('m01506-1', 'm01507-1')`)
	exec(t, db, `update outbox_messages set status = 'Published', published_at = now() - interval '1 hour' where event_id = 'm01508-1'`)
	exec(t, db, `update outbox_messages set status = 'Processing', locked_by = 'relay', locked_until = now(), created_at = now() - interval '400 days' where event_id = 'm01509-1'`)
	n, err := outbox.Prune(t.Context(), db, 7*24*time.Hour)
	if err != nil || n != 1503 {
		t.Errorf("pruned %d, %v; want 1503", n, err)
	}
	if left := query[int](t, db, `select count(*) from outbox_messages`)[0]; left != 6 {
		t.Errorf("%d left, want 6", left)
	}
}

func TestGivesUpAfter(t *testing.T) {
	t.Parallel()
	if got, want := (&outbox.Relay{}).GivesUpAfter(), 1111*time.Second; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := (&outbox.Relay{Budget: 3, Backoff: 10 * time.Second, BackoffCap: 15 * time.Second}).GivesUpAfter(), 25*time.Second; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
