package order

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/baton/shared/events"
)

// The limits of a request; openapi.yaml says the same.
const (
	maxBody     = 64 << 10 // bytes
	maxItems    = 100
	maxText     = 64 // bytes of a customerId or a sku
	maxQuantity = events.MaxQuantity
	maxKey      = 255 // characters of an Idempotency-Key
)

// readNewOrder reads the body of POST /orders. It takes one JSON object that
// says everything once and nothing else, and returns a *problem that names the
// field otherwise.
func readNewOrder(w http.ResponseWriter, r *http.Request) (newOrder, error) {
	var n newOrder
	body, err := readJSON(w, r)
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(body, &n, json.RejectUnknownMembers(true)); err != nil {
		return n, invalid(explain(err))
	}
	if jsontext.Value(body).Kind() != '{' {
		return n, invalid(&fieldError{Message: "the body must be an object"}) // null decodes into anything
	}
	if errs := n.check(); len(errs) > 0 {
		return n, invalid(errs...)
	}
	return n, nil
}

// readJSON reads a body that says it is JSON, up to maxBody.
func readJSON(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := params["charset"]
	if err != nil || media != "application/json" || (charset != "" && !strings.EqualFold(charset, "utf-8")) {
		w.Header().Set("Accept-Post", "application/json")
		return nil, plain(http.StatusUnsupportedMediaType, "the Content-Type must be application/json, in UTF-8")
	}
	tooLarge := plain(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body must not be larger than %d bytes", maxBody))
	if r.ContentLength > maxBody {
		w.Header().Set("Connection", "close") // rather than read it to its end
		return nil, tooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if errors.As(err, new(*http.MaxBytesError)) {
		return nil, tooLarge
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, plain(http.StatusRequestTimeout, fmt.Sprintf("the request did not arrive within %s", readTimeout))
	case err != nil: // broken chunks, or the client hung up
		w.Header().Set("Connection", "close")
		return nil, invalid(&fieldError{Message: "the body was cut short"})
	}
	return body, nil
}

// explain turns an error of the decoder into one that names the field.
func explain(err error) *fieldError {
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &syntax) && errors.Is(syntax.Err, jsontext.ErrDuplicateName):
		return &fieldError{fieldName(syntax.JSONPointer), "is there twice"}
	case errors.As(err, &syntax):
		return &fieldError{fieldName(syntax.JSONPointer), fmt.Sprintf("not valid JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)}
	case errors.As(err, &semantic) && errors.Is(semantic.Err, json.ErrUnknownName):
		return &fieldError{fieldName(semantic.JSONPointer), "is not a field of an order; names are written exactly as documented"}
	case errors.As(err, &semantic):
		return &fieldError{fieldName(semantic.JSONPointer), "must be " + wanted(semantic)}
	}
	return &fieldError{Message: "must be one JSON object, and nothing before or after it"}
}

// wanted says in the words of JSON what the decoder expected.
func wanted(e *json.SemanticError) string {
	name := fieldName(e.JSONPointer)
	switch field := name[strings.LastIndexByte(name, '.')+1:]; {
	case field == "amount":
		return "a number, such as 199.00"
	case field == "quantity":
		return fmt.Sprintf("a whole number from 1 to %d", maxQuantity)
	case field == "items":
		return "an array of objects"
	case field == "" || strings.HasSuffix(field, "]"):
		return "an object"
	}
	return "a string"
}

// fieldName writes a JSON pointer as people do: /items/1/quantity is
// items[1].quantity.
func fieldName(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		switch {
		case token != "" && strings.Trim(token, "0123456789") == "":
			fmt.Fprintf(&b, "[%s]", token)
		case b.Len() > 0:
			b.WriteString("." + printable(token))
		default:
			b.WriteString(printable(token))
		}
	}
	return b.String()
}

// printable shortens what a client made up to something that can be repeated to
// it.
func printable(s string) string {
	const longest = 64
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return '?'
		}
		return c
	}, s)
	if runes := []rune(s); len(runes) > longest {
		return string(runes[:longest]) + "…"
	}
	return s
}

// check returns everything that is wrong with n, and brings its amount into the
// currency's form.
func (n *newOrder) check() []*fieldError {
	var errs []*fieldError
	wrong := func(field, format string, args ...any) {
		errs = append(errs, &fieldError{field, fmt.Sprintf(format, args...)})
	}
	if msg := checkText(n.CustomerID); msg != "" {
		wrong("customerId", "%s", msg)
	}
	decimals, known := minorUnits[n.Currency]
	if !known {
		wrong("currency", "must be an ISO 4217 code in capitals, such as CNY")
	}
	switch amount, err := normal(n.Amount, decimals); {
	case n.Amount == "":
		wrong("amount", "is missing")
	case err != nil && known:
		wrong("amount", "%v", err)
	case known:
		n.Amount = amount
	}
	if len(n.Items) < 1 || len(n.Items) > maxItems {
		wrong("items", "must be 1 to %d, not %d", maxItems, len(n.Items))
		return errs
	}
	for i, item := range n.Items {
		if msg := checkText(item.SKU); msg != "" {
			wrong(fmt.Sprintf("items[%d].sku", i), "%s", msg)
		}
		if item.Quantity < 1 || item.Quantity > maxQuantity {
			wrong(fmt.Sprintf("items[%d].quantity", i), "must be a whole number from 1 to %d", maxQuantity)
		}
	}
	return errs
}

// checkText says what is wrong with a name that a client made up. Control
// characters are refused because they forge log lines, and NUL because
// PostgreSQL cannot store it.
func checkText(s string) string {
	switch {
	case s == "":
		return "is missing"
	case len(s) > maxText:
		return fmt.Sprintf("must not be longer than %d bytes in UTF-8", maxText)
	case strings.ContainsFunc(s, unicode.IsControl):
		return "must not have control characters"
	}
	return ""
}

var visibleASCII = regexp.MustCompile(`^[!-~]+$`)

// idempotencyKey returns the key of a request, or "" if it has none.
func idempotencyKey(h http.Header) (string, error) {
	const name = "Idempotency-Key"
	switch values := h.Values(name); {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", invalid(&fieldError{name, "must be there once"})
	case len(values[0]) > maxKey || !visibleASCII.MatchString(values[0]):
		return "", invalid(&fieldError{name, fmt.Sprintf("must be 1 to %d visible ASCII characters", maxKey)})
	default:
		return values[0], nil
	}
}

var traceContext = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$`)

// traceparent returns the trace context of a request as W3C Trace Context has
// it, or "" when there is none that is valid: it is no reason to refuse an order.
func traceparent(h http.Header) string {
	values := h.Values("Traceparent")
	if len(values) != 1 {
		return ""
	}
	m := traceContext.FindStringSubmatch(values[0])
	if m == nil || m[1] == "ff" || strings.Trim(m[2], "0") == "" || strings.Trim(m[3], "0") == "" {
		return ""
	}
	return values[0]
}

// noBody refuses a body where none belongs, since whoever sends one expects
// something of it.
func noBody(r *http.Request) error {
	n, _ := io.ReadFull(r.Body, make([]byte, 1))
	if n > 0 {
		return invalid(&fieldError{Message: "this request takes no body"})
	}
	return nil
}

// params are the query parameters of a request, which must be among known, each
// at most once: a misspelt one that is silently ignored gives a wrong answer.
func params(r *http.Request, known ...string) (map[string]string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalid(&fieldError{Message: "the query is not well formed"})
	}
	values := make(map[string]string, len(query))
	for name, all := range query {
		switch {
		case !slices.Contains(known, name):
			return nil, invalid(&fieldError{printable(name), "is not a parameter here; those are " + strings.Join(known, ", ")})
		case len(all) > 1:
			return nil, invalid(&fieldError{name, "must be there once"})
		}
		values[name] = all[0]
	}
	return values, nil
}
