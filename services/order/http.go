package order

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// openAPI describes the API; the tests hold every request and answer against it.
//
//go:embed openapi.yaml
var openAPI []byte

// routes is the whole HTTP surface.
func (s *service) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(identify, s.metrics.measure, s.recoverPanic)
	r.NotFound(s.handler(func(_ http.ResponseWriter, r *http.Request) error {
		return plain(http.StatusNotFound, "there is nothing at "+printable(r.URL.Path))
	}))
	r.MethodNotAllowed(s.handler(methodNotAllowed))

	r.Post("/orders", s.handler(s.postOrder))
	r.Get("/orders", s.handler(s.listOrders))
	r.Get("/orders/{orderId}", s.handler(s.getOrder))
	r.Post("/orders/{orderId}/cancel", s.handler(s.postCancel))
	r.Get("/timeline/{orderId}", s.handler(s.getTimeline))

	r.Get("/livez", s.getLive)
	r.Get("/readyz", s.getReady)
	r.Method(http.MethodGet, "/metrics", s.metrics.handler())
	r.Get("/openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		send(w, http.StatusOK, "application/yaml", openAPI)
	})
	r.Method(http.MethodGet, "/steps", s.ring.Handler())
	if s.faults != nil {
		r.Handle("/faults", s.faults.Handler())
	}
	return r
}

// handler adapts a function that may fail.
func (s *service) handler(h func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			s.fail(w, r, err)
		}
	}
}

// bounded is the context for the database work of a request. It has an end, and
// it is not the client's to end: one that hangs up in the middle would cost a
// connection, and leave us without the outcome of a commit.
func (s *service) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.RequestTimeout)
}

func methodNotAllowed(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	routes := chi.RouteContext(r.Context()).Routes
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		if routes.Match(chi.NewRouteContext(), method, r.URL.Path) {
			allowed = append(allowed, method)
		}
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return plain(http.StatusMethodNotAllowed, fmt.Sprintf("%s is not allowed here, but %s", printable(r.Method), strings.Join(allowed, ", ")))
}

type requestIDKey struct{}

var goodRequestID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// identify gives each request an id, which is the client's own if that is short
// and plain: it goes into the answer and into log lines.
func identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := rand.Text()
		if own := r.Header.Values("X-Request-Id"); len(own) == 1 && goodRequestID.MatchString(own[0]) {
			id = own[0]
		}
		w.Header().Set("X-Request-Id", id)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id)))
	})
}

func requestID(r *http.Request) string {
	id, _ := r.Context().Value(requestIDKey{}).(string)
	return id
}

// recoverPanic turns a panic into a 500, if it is not too late for that.
func (s *service) recoverPanic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		defer func() {
			switch p := recover(); {
			case p == nil:
			case p == http.ErrAbortHandler:
				panic(p) // asks for the connection to be cut
			case seen.Status() != 0:
				s.log.ErrorContext(r.Context(), "handler panicked in its answer", "request_id", requestID(r), "panic", p, "stack", string(debug.Stack()))
				panic(http.ErrAbortHandler)
			default:
				s.fail(w, r, fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack()))
			}
		}()
		next.ServeHTTP(seen, r)
	})
}
