package order

import (
	"bufio"
	"bytes"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// raw sends text as it is and returns the first line of the answer.
func raw(t *testing.T, base, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func TestNotFoundAndNotAllowed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, tt := range []struct {
		method, path string
		want         int
		allow        string
	}{
		{"GET", "/", 404, ""},
		{"GET", "/orders/", 404, ""},
		{"GET", "/faults", 404, ""}, // not asked for
		{"POST", "/nothing", 404, ""},
		{"PUT", "/orders", 405, "GET, POST"},
		{"DELETE", "/orders", 405, "GET, POST"},
		{"GET", "/orders/ORD-20260715-000001/cancel", 405, "POST"},
		{"BREW", "/orders", 405, "GET, POST"},
	} {
		a := f.do(t, tt.method, tt.path, "")
		if p := a.problem(t); a.status != tt.want || p.Status != tt.want || a.header.Get("Allow") != tt.allow ||
			a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %d %s, Allow %q, want %d, %q", tt.method, tt.path, a.status, a.body, a.header.Get("Allow"), tt.want, tt.allow)
		}
	}
}

// B62, B82: an id of the client is taken if it is short and plain, and log lines stay
// lines.
func TestRequestID(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	f := setup(t, func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	f.RequestTimeout = time.Nanosecond // every request fails, and is logged at level debug
	for _, tt := range []struct {
		name string
		ids  []string
		keep bool
	}{
		{"plain", []string{"abc_DEF-123"}, true},
		{"longest", []string{strings.Repeat("a", 64)}, true},
		{"too long", []string{strings.Repeat("a", 65)}, false},
		{"60 KB", []string{strings.Repeat("a", 60_000)}, false},
		{"escape sequence", []string{"\x1b[31m"}, false},
		{"forged field", []string{`","level":"ERROR","msg":"forged`}, false},
		{"emoji", []string{strings.Repeat("🙂", 200)}, false},
		{"two", []string{"a", "b"}, false},
		{"empty", []string{""}, false},
	} {
		var headers []string
		for _, id := range tt.ids {
			if strings.Contains(id, "\x1b") {
				continue // net/http sends no such header; the next test does by hand
			}
			headers = append(headers, "X-Request-Id", id)
		}
		a := f.post(t, baseOrder, headers...)
		got := a.header.Get("X-Request-Id")
		if kept := got == tt.ids[0]; kept != tt.keep || !goodRequestID.MatchString(got) {
			t.Errorf("%s: answered with %.80q", tt.name, got)
		}
		if a.status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d, want 503", tt.name, a.status)
		}
	}
	raw(t, f.url, "GET /orders HTTP/1.1\r\nHost: x\r\nX-Request-Id: \x1b[31m\r\n\r\n")
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	for _, line := range lines {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil || len(line) > 2000 || entry["msg"] == "forged" {
			t.Errorf("log line %.200s: %v", line, err)
		}
	}
	if len(lines) < 9 {
		t.Errorf("%d log lines, want one for each request", len(lines))
	}
}

// B81: nobody's forwarding headers are believed, or logged.
func TestForwardingHeadersAreIgnored(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	f := setup(t, func(c *Config) {
		c.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	f.placeOrder(t, "True-Client-IP", "10.9.9.9", "X-Forwarded-For", "1.2.3.4, 5.6.7.8", "X-Real-IP", "text with spaces")
	for _, made := range []string{"10.9.9.9", "1.2.3.4", "text with spaces"} {
		if strings.Contains(log.String(), made) {
			t.Errorf("the log has %s", made)
		}
	}
}

func TestPanicIs500(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	f := setup(t, func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	h := identify(f.recoverPanic(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("secret inside") })))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("got %d %s, want 500 without internals", w.Code, w.Body)
	}
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q", got)
	}
	if !strings.Contains(log.String(), "secret inside") || !strings.Contains(log.String(), w.Header().Get("X-Request-Id")) {
		t.Errorf("the log does not have the panic and the request id: %s", log.String())
	}
}

func TestMetricsKnowRoutesOnly(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := f.placeOrder(t)
	f.get(t, "/orders/"+o.OrderID)
	f.get(t, "/made-up-by-a-client")
	f.do(t, "BREW", "/orders", "")
	a := f.get(t, "/metrics")
	for _, want := range []string{
		`baton_http_requests_total{method="POST",route="/orders",status="201"} 1`,
		`baton_http_requests_total{method="GET",route="/orders/{orderId}",status="200"} 1`,
		`baton_http_requests_total{method="GET",route="none",status="404"} 1`,
		`baton_outbox_rows{status="Pending"} 1`,
		`baton_database_up 1`,
		`baton_relay_outcomes_total{outcome="published"} 0`,
		`baton_consumer_dead_lettered_total 0`,
		`baton_bindings_missing 0`,
		`baton_inbox_duplicates_total 0`,
	} {
		if !strings.Contains(string(a.body), want) {
			t.Errorf("no line %s", want)
		}
	}
	for _, odd := range []string{"made-up", "BREW", o.OrderID} {
		if strings.Contains(string(a.body), odd) {
			t.Errorf("a client's %s is in the metrics", odd)
		}
	}
}

func TestDocumentIsServed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if a := f.get(t, "/openapi.yaml"); a.status != http.StatusOK || !bytes.Equal(a.body, openAPI) {
		t.Errorf("got %d, %d bytes", a.status, len(a.body))
	}
}

// lockedBuffer takes log lines of many goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
