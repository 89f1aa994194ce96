package order

import (
	"sync"
	"testing"
	"time"

	"example.com/baton/shared/events"
)

var testTime = time.Date(2026, 7, 15, 10, 0, 0, 0, time.UTC)

// B96: 64 goroutines of one process, and two processes with blocks of another
// size, never take the same number or make the same id.
func TestNumbersAreUnique(t *testing.T) {
	t.Parallel()
	const goroutines, each = 64, 200
	f := setup(t)
	processes := []*numbers{newNumbers(f.db, 100), newNumbers(f.db, 7), newNumbers(f.db, 1000)}
	var mu sync.Mutex
	seen := make(map[any]bool, 3*goroutines*each)
	var all sync.WaitGroup
	for _, n := range processes {
		for range goroutines {
			all.Go(func() {
				got := make([]Order, each)
				for i := range got {
					number, now, err := n.take(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					got[i] = newOrder{}.order(number, now)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, o := range got {
					if seen[o.OrderID] || seen[o.EventID] {
						t.Errorf("%s, %s twice", o.OrderID, o.EventID)
					}
					seen[o.OrderID], seen[o.EventID] = true, true
				}
			})
		}
	}
	all.Wait()
	if got, want := len(seen), 2*len(processes)*goroutines*each; got != want {
		t.Errorf("%d ids, want %d", got, want)
	}
}

// The time is the database's, however wrong the process's clock is, and it is
// asked for again every minute.
func TestTimeIsTheDatabases(t *testing.T) {
	t.Parallel()
	f := setup(t)
	n := newNumbers(f.db, 3)
	wrong := testTime.Add(-10 * 365 * 24 * time.Hour)
	n.now = func() time.Time { return wrong }
	databaseTime := func() (now time.Time) {
		t.Helper()
		if err := f.db.QueryRow(t.Context(), `select clock_timestamp()`).Scan(&now); err != nil {
			t.Fatal(err)
		}
		return now
	}
	before := databaseTime()
	first, now, err := n.take(t.Context())
	if err != nil || now.Before(before) || now.After(databaseTime()) {
		t.Errorf("time %s (%v), want that of the database, about %s", now, err, before)
	}
	// Between two looks time goes on by the process's monotonic clock.
	wrong = wrong.Add(30 * time.Second)
	second, later, err := n.take(t.Context())
	if got := later.Sub(now); err != nil || got != 30*time.Second {
		t.Errorf("30 seconds on, the time is %s later (%v)", got, err)
	}
	// After a minute the database is asked, and the block is used up all the same.
	wrong = wrong.Add(30 * time.Second)
	third, again, err := n.take(t.Context())
	if err != nil || again.After(databaseTime()) {
		t.Errorf("a minute on, the time is %s (%v), want the database's", again, err)
	}
	if second != first+1 || third != first+2 {
		t.Errorf("numbers %d, %d, %d, want three of one block", first, second, third)
	}
}

// B102: cut to what PostgreSQL keeps and never rounded, or the order would be of
// the next day.
func TestTimeIsCut(t *testing.T) {
	t.Parallel()
	o := newOrder{}.order(7, time.Date(2026, 3, 21, 23, 59, 59, 999_999_900, time.UTC))
	if got, want := o.OrderID, "ORD-20260321-000007"; got != want {
		t.Errorf("order id %s, want %s", got, want)
	}
	text, err := o.CreatedAt.MarshalJSON()
	if got, want := string(text), `"2026-03-21T23:59:59.999999Z"`; got != want || err != nil {
		t.Errorf("time %s, want %s", got, want)
	}
	// The day is that of UTC, wherever the process runs.
	east := time.FixedZone("east", 8*60*60)
	if got, want := (newOrder{}).order(7, time.Date(2026, 3, 22, 7, 0, 0, 0, east)).OrderID, "ORD-20260321-000007"; got != want {
		t.Errorf("order id %s, want %s", got, want)
	}
	if got, want := (newOrder{}).order(12_345_678, testTime).OrderID, "ORD-20260715-12345678"; got != want {
		t.Errorf("order id %s, want %s", got, want)
	}
	if a, b := events.NewID(o.CreatedAt.Time), events.NewID(o.CreatedAt.Time.Add(time.Millisecond)); a > b {
		t.Errorf("event ids %s, %s do not sort by time", a, b)
	}
}

// Whoever waits for a block gives up when its own time is over.
func TestWaitForNumbersHasAnEnd(t *testing.T) {
	t.Parallel()
	f := setup(t, func(c *Config) { c.RequestTimeout = 100 * time.Millisecond })
	f.numbers.busy <- struct{}{} // somebody is at it and does not come back
	if a := f.post(t, baseOrder); a.status != 503 {
		t.Errorf("got %d %s, want 503", a.status, a.body)
	}
}
