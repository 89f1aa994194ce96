package inventory

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-json-experiment/json"

	"example.com/baton/shared/inbox"
)

// routes is the whole HTTP surface: things to look at. Stock is changed by
// events alone.
func (s *service) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(middleware.GetHead)
	r.NotFound(s.handler(func(http.ResponseWriter, *http.Request) error { return errNotFound }))
	r.MethodNotAllowed(s.handler(func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Allow", "GET, HEAD")
		return errNotAllowed
	}))

	r.Get("/stock", s.handler(s.listStock))
	r.Get("/stock/{sku}", s.handler(s.getStock))
	r.Get("/reservations/{orderId}", s.handler(s.getReservation))
	r.Get("/timeline/{orderId}", s.handler(s.getTimeline))

	r.Get("/livez", s.getLive)
	r.Get("/readyz", s.getReady)
	r.Method(http.MethodGet, "/metrics", s.metrics.handler())
	r.Method(http.MethodGet, "/steps", s.ring.Handler())
	if s.faults != nil {
		r.Handle("/faults", s.faults.Handler())
	}
	return r
}

// problem is an answer that is not what was asked for, as
// application/problem+json (RFC 9457). Handlers return it as an error.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func (p *problem) Error() string { return p.Detail }

func newProblem(status int, detail string) *problem {
	return &problem{"about:blank", http.StatusText(status), status, detail}
}

var (
	errNotFound   = newProblem(http.StatusNotFound, "there is nothing by this name")
	errNotAllowed = newProblem(http.StatusMethodNotAllowed, "this can only be looked at")
	errAway       = newProblem(http.StatusServiceUnavailable, "the database cannot be used at the moment")
	errInside     = newProblem(http.StatusInternalServerError, "something went wrong inside; the log has more")
)

// handler adapts a function that may fail. It is the one place that maps errors
// to statuses, and shows nothing of the inside.
func (s *service) handler(h func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// Not the client's to end: one that hangs up would cost a connection to the
		// database.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestTimeout)
		defer cancel()
		err := h(w, r.WithContext(ctx))
		if err == nil {
			return
		}
		var p *problem
		switch {
		case errors.As(err, &p):
		case inbox.Outage(err): // /readyz and the log have said why, once
			w.Header().Set("Retry-After", "1")
			p = errAway
		default:
			s.log.ErrorContext(ctx, "request failed", "method", r.Method, "path", r.URL.Path, "err", err)
			p = errInside
		}
		send(w, p.Status, "application/problem+json", p)
	}
}

// reply answers with v as JSON.
func reply(w http.ResponseWriter, status int, v any) { send(w, status, "application/json", v) }

func send(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err) // our own types
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone
}

// pathName returns a part of the path, or errNotFound for what cannot be a name;
// PostgreSQL would choke on some of it.
func pathName(r *http.Request, key string) (string, error) {
	v := chi.URLParam(r, key)
	if r.URL.RawPath != "" { // then chi has matched the path as it was escaped
		var err error
		if v, err = url.PathUnescape(v); err != nil {
			return "", errNotFound
		}
	}
	if !isName(v) {
		return "", errNotFound
	}
	return v, nil
}

// isName reports whether v can be a sku or an order id.
func isName(v string) bool {
	return v != "" && len(v) <= 64 && utf8.ValidString(v) && !strings.ContainsRune(v, 0)
}
