package order

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"example.com/baton/internal/testenv"
)

// BenchmarkPostOrder is POST /orders with all that a request passes, but for the
// socket: middleware, validation, an Idempotency-Key of its own, one transaction
// and the answer. An operation is one order.
func BenchmarkPostOrder(b *testing.B) {
	for _, clients := range []int{1, 8} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			api := setup(b, func(c *Config) { c.Logger = slog.New(slog.DiscardHandler) }).routes()
			var begun atomic.Int64
			var all sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range clients {
				all.Go(func() {
					for n := begun.Add(1); n <= int64(b.N); n = begun.Add(1) {
						r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/orders", strings.NewReader(baseOrder))
						r.Header.Set("Content-Type", "application/json")
						r.Header.Set("Idempotency-Key", fmt.Sprintf("key-%d", n))
						w := httptest.NewRecorder()
						if api.ServeHTTP(w, r); w.Code != http.StatusCreated {
							b.Errorf("%d %s", w.Code, w.Body)
							return
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
			testenv.ReportRate(b, "orders")
		})
	}
}
