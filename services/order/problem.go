package order

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/baton/shared/inbox"
)

// problem is an answer that is not what was asked for, as
// application/problem+json (RFC 9457). Handlers return it as an error.
type problem struct {
	Type   string        `json:"type"` // one of the constants, for programs to branch on
	Title  string        `json:"title"`
	Status int           `json:"status"`
	Detail string        `json:"detail,omitempty"`
	Errors []*fieldError `json:"errors,omitempty"`

	retryAfter time.Duration
}

// fieldError names what is wrong with one field of a request, or with one header
// or parameter.
type fieldError struct {
	Field   string `json:"field"` // such as "items[1].quantity"; empty for the body as a whole
	Message string `json:"message"`
}

func (p *problem) Error() string { return p.Title + ": " + p.Detail }

// The types of problems. They are names, not addresses.
const (
	typeInvalid        = "urn:baton:problem:invalid-request"
	typeKeyReused      = "urn:baton:problem:idempotency-key-reused"
	typeNotCancellable = "urn:baton:problem:order-not-cancellable"
	typeUnavailable    = "urn:baton:problem:unavailable"
	typeUnknown        = "urn:baton:problem:outcome-unknown"
	typeBlank          = "about:blank" // nothing more to say than the status does
)

// plain is a problem that its status explains.
func plain(status int, detail string) *problem {
	return &problem{Type: typeBlank, Title: http.StatusText(status), Status: status, Detail: detail}
}

// invalid is a request that has to be changed before it is sent again.
func invalid(errs ...*fieldError) *problem {
	return &problem{
		Type: typeInvalid, Title: "Invalid request", Status: http.StatusBadRequest,
		Detail: sentence(errs), Errors: errs,
	}
}

// outage is a request that was in order and found nobody to do it.
func outage(detail string) *problem {
	return &problem{
		Type: typeUnavailable, Title: "Service unavailable", Status: http.StatusServiceUnavailable,
		Detail: detail, retryAfter: time.Second,
	}
}

func sentence(errs []*fieldError) string {
	texts := make([]string, len(errs))
	for i, e := range errs {
		texts[i] = strings.TrimSpace(e.Field + " " + e.Message)
	}
	return strings.Join(texts, "; ")
}

// errOutcomeUnknown is an error in the middle of a commit: the database may have
// made the change or not.
var errOutcomeUnknown = errors.New("outcome unknown")

// asProblem decides what a client gets to see of err. It is the one place that
// maps errors to statuses, and what it does not know is a 500 without a word
// about the inside.
func asProblem(err error) *problem {
	var p *problem
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, errOutcomeUnknown):
		return &problem{
			Type: typeUnknown, Title: "Outcome unknown", Status: http.StatusServiceUnavailable, retryAfter: time.Second,
			Detail: "the change may have been made or not; sending it again with the same Idempotency-Key makes it once",
		}
	case unavailable(err):
		return outage("the database cannot be used at the moment; nothing was changed")
	}
	return plain(http.StatusInternalServerError, "something went wrong inside; the log has more under the request id")
}

// unavailable is what heals by itself: an outage, a lost conflict, or a cached
// plan that a migration made useless.
func unavailable(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "40") || pg.Code == "0A000") {
		return true
	}
	return inbox.Outage(err)
}

// fail answers with the problem that err is.
func (s *service) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := asProblem(err)
	switch {
	case p.Status == http.StatusInternalServerError:
		s.log.ErrorContext(r.Context(), "request failed", "request_id", requestID(r), "method", r.Method, "path", r.URL.Path, "err", err)
	case p.Status == http.StatusServiceUnavailable:
		// Not louder: in an outage every request ends here, and the readiness
		// check has said why once.
		s.log.DebugContext(r.Context(), "request refused", "request_id", requestID(r), "method", r.Method, "path", r.URL.Path, "err", err)
	}
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(p.retryAfter.Seconds())))
	}
	reply(w, p.Status, "application/problem+json", p)
}

// reply writes v as JSON.
func reply(w http.ResponseWriter, status int, contentType string, v any) {
	send(w, status, contentType, encode(v))
}

// encode writes one of our own types as JSON, the same text each time.
func encode(v any) []byte {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err) // a type that JSON cannot say is a mistake of ours
	}
	return b
}

// send writes a body. An error of it means that the client is gone, which is
// the client's affair.
func send(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
