package testenv

import (
	"log/slog"
	"sync"
	"testing"
)

// Logger logs to t.Log, at level debug. What comes after the end of the test
// is dropped: t.Log would panic, and hide what the test found.
func Logger(t testing.TB) *slog.Logger {
	w := &logWriter{t: t}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type logWriter struct {
	mu sync.Mutex
	t  testing.TB // nil once the test has ended
}

func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Logf("%s", line[:len(line)-1])
	}
	return len(line), nil
}

func (w *logWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}
