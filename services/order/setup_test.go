package order

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/testenv"
	migrations "example.com/baton/migrations/order"
)

const baseOrder = `{"customerId":"C10086","amount":199.00,"currency":"CNY","items":[{"sku":"SKU-1","quantity":2}]}`

// fixture is a service on a schema of its own, with nothing running but HTTP.
type fixture struct {
	*service
	url string // of the API
}

// setup makes one; change may set the configuration up otherwise.
func setup(t testing.TB, change ...func(*Config)) fixture {
	t.Helper()
	return serviceOn(t, migrated(t), change...)
}

// migrated is the address of a fresh schema with the tables of the service.
func migrated(t testing.TB) string {
	t.Helper()
	address := testenv.SchemaURL(t)
	if _, err := provision.Migrate(t.Context(), address, migrations.FS); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return address + "&application_name=" + u.Query().Get("search_path") // for waitForLocks
}

func serviceOn(t testing.TB, databaseURL string, change ...func(*Config)) fixture {
	t.Helper()
	cfg := Config{
		DatabaseURL: databaseURL,
		AMQPURL:     "amqp://nobody@127.0.0.1:1/", // not used: the relay does not run
		Logger:      testenv.Logger(t),
	}
	for _, c := range change {
		c(&cfg)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	db, err := pgxpool.NewWithConfig(t.Context(), cfg.poolConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s := newService(cfg, db)
	srv := httptest.NewServer(s.routes())
	t.Cleanup(srv.Close)
	return fixture{s, srv.URL}
}

// answered is an answer of the API.
type answered struct {
	status int
	header http.Header
	body   []byte
}

// problem reads the body as one.
func (a answered) problem(t *testing.T) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Fatalf("answer %d %s: %v", a.status, a.body, err)
	}
	return p
}

// order reads the body as one.
func (a answered) order(t *testing.T) Order {
	t.Helper()
	var o Order
	if err := json.Unmarshal(a.body, &o); err != nil {
		t.Fatalf("answer %d %s: %v", a.status, a.body, err)
	}
	return o
}

func (f fixture) post(t *testing.T, body string, headers ...string) answered {
	t.Helper()
	return f.do(t, http.MethodPost, "/orders", body, append([]string{"Content-Type", "application/json"}, headers...)...)
}

func (f fixture) get(t *testing.T, path string) answered {
	t.Helper()
	return f.do(t, http.MethodGet, path, "")
}

func (f fixture) cancelOrder(t *testing.T, id string) answered {
	t.Helper()
	return f.do(t, http.MethodPost, "/orders/"+id+"/cancel", "")
}

// place places the base order and returns it.
func (f fixture) placeOrder(t *testing.T, headers ...string) Order {
	t.Helper()
	a := f.post(t, baseOrder, headers...)
	if a.status != http.StatusCreated {
		t.Fatalf("POST /orders: %d %s", a.status, a.body)
	}
	return a.order(t)
}

// do sends a request and holds it and its answer against openapi.yaml: an answer
// must be one that the document describes, and a request that succeeds one that
// it allows. Without an answer the test fails and goes on with the zero value, so
// that any goroutine may call it.
func (f fixture) do(t *testing.T, method, path, body string, headers ...string) answered {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return answered{}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return answered{}
	}
	defer res.Body.Close()
	a := answered{status: res.StatusCode, header: res.Header}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		t.Error(err)
		return answered{}
	}
	r.Body = io.NopCloser(strings.NewReader(body))
	checkAgainstDocument(t, r, a)
	return a
}

// document is openapi.yaml, checked as OpenAPI 3.1 itself.
var document = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		return nil, err
	}
	return legacy.NewRouter(doc, openapi3.EnableSchemaPatternValidation())
})

func checkAgainstDocument(t *testing.T, r *http.Request, a answered) {
	t.Helper()
	router, err := document()
	if err != nil {
		t.Errorf("openapi.yaml: %v", err)
		return
	}
	u := *r.URL
	r.URL.Scheme, r.URL.Host = "", "" // the document's server is "/"
	route, pathParams, err := router.FindRoute(r)
	r.URL = &u
	if err != nil || strings.HasSuffix(r.URL.Path, "/") {
		// Not in the document: the only answers are that there is no such thing.
		if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed {
			t.Errorf("%s %s: %d, and openapi.yaml does not know it: %v", r.Method, r.URL.Path, a.status, err)
		}
		return
	}
	in := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: pathParams, Route: route,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	if a.status < 400 {
		if err := openapi3filter.ValidateRequest(t.Context(), in); err != nil {
			t.Errorf("%s %s was accepted, and openapi.yaml does not allow it: %v", r.Method, r.URL.Path, err)
		}
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: a.status, Header: a.header,
		Body: io.NopCloser(bytes.NewReader(a.body)), Options: in.Options,
	}
	if err := openapi3filter.ValidateResponse(t.Context(), out); err != nil {
		t.Errorf("%s %s: answer %d %s is not as in openapi.yaml: %v", r.Method, r.URL.Path, a.status, a.body, err)
	}
}

// count is the one number that a query returns.
func (f fixture) count(t *testing.T, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := f.db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// waitForLocks returns when n requests of the service wait for a lock.
func (f fixture) waitForLocks(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, "requests wait for a lock", func() error {
		return testenv.Want(f.count(t, `select count(*) from pg_stat_activity
			where application_name = current_setting('application_name') and wait_event_type = 'Lock'`), n)
	})
}

// wantOrders fails unless there are n orders and as many order.created rows.
func (f fixture) wantOrders(t *testing.T, n int) {
	t.Helper()
	orders := f.count(t, `select count(*) from orders`)
	events := f.count(t, `select count(*) from outbox_messages where event_type = 'order.created'`)
	if orders != n || events != n {
		t.Errorf("%d orders and %d events stored, want %d of each", orders, events, n)
	}
}
