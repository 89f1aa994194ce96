package chaos

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// shop takes orders as the service does, and answers each only the second time
// that it is asked.
type shop struct {
	mu    sync.Mutex
	asked map[string]int // by key or path
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.Header.Get("Idempotency-Key") + strings.TrimPrefix(r.URL.Path, "/orders")
	s.asked[key]++
	switch {
	case s.asked[key] == 1:
		w.WriteHeader(http.StatusServiceUnavailable)
	case strings.HasSuffix(r.URL.Path, "/cancel"):
		w.WriteHeader(http.StatusConflict)
	default:
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"orderId":"O-%s","eventId":"E-%s"}`, key, key)
	}
}

// The load comes at its rate whether it is answered or not, and each client asks
// again with the same key until it is.
func TestLoad(t *testing.T) {
	t.Parallel()
	s := &shop{asked: make(map[string]int)}
	server := httptest.NewServer(s)
	defer server.Close()
	gone := httptest.NewServer(nil)
	gone.Close() // a process that is down
	l := newLoad([]string{server.URL, gone.URL}, 100, "c")
	place, noMore := context.WithTimeout(t.Context(), time.Second)
	defer noMore()
	l.run(place, t.Context())

	n := len(l.orders)
	if n < 50 || n > 100 {
		t.Errorf("%d orders in a second, want about 100", n)
	}
	if int64(n) != l.accepted.Load() || l.repeated < n || len(l.unexpected) > 0 {
		t.Errorf("%d accepted, %d repeated, %q", l.accepted.Load(), l.repeated, l.unexpected)
	}
	if want := (n + cancelEvery - 1) / cancelEvery; len(l.cancelled) != want {
		t.Errorf("%d orders were to be cancelled, want %d", len(l.cancelled), want)
	}
	for id, told := range l.cancelled {
		if told {
			t.Errorf("order %s counts as cancelled after a 409", id)
		}
	}
	for i := range n {
		if r := l.orders[fmt.Sprintf("O-c-%d", i)]; r.customer != fmt.Sprintf("c-%d", i) || r.eventID == "" || len(r.items) == 0 {
			t.Errorf("order %d is kept as %+v", i, r)
		}
	}
}

// A client that is never answered gives up when it is told to, and keeps nothing.
func TestLoadGivesUp(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	l := newLoad([]string{gone.URL}, 100, "c")
	place, noMore := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer noMore()
	answer, give := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer give()
	l.run(place, answer)
	if len(l.orders) != 0 || l.repeated == 0 {
		t.Errorf("%d orders, %d requests repeated", len(l.orders), l.repeated)
	}
}

// What no client should be answered is told.
func TestLoadComplains(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer server.Close()
	l := newLoad([]string{server.URL}, 100, "c")
	place, noMore := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer noMore()
	l.run(place, t.Context())
	if len(l.unexpected) == 0 || !strings.Contains(l.unexpected[0], "418") {
		t.Errorf("complaints: %q", l.unexpected)
	}
}

func exec(t *testing.T, db *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
