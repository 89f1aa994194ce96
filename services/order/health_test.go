package order

import (
	"net/http"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/testenv"
	migrations "example.com/baton/migrations/order"
)

// ready asks /readyz and returns the checks as "name: status detail".
func (f fixture) ready(t *testing.T) (status int, overall string, checks map[string]string) {
	t.Helper()
	a := f.get(t, "/readyz")
	var answer struct {
		Status string  `json:"status"`
		Checks []check `json:"checks"`
	}
	if err := json.Unmarshal(a.body, &answer); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	checks = make(map[string]string)
	for _, c := range answer.Checks {
		checks[c.Name] = strings.TrimSpace(c.Status + " " + c.Detail)
	}
	return a.status, answer.Status, checks
}

// Without a broker the API is up, and says that it is degraded and why.
func TestReadyWithoutBroker(t *testing.T) {
	t.Parallel()
	f := setup(t)
	status, overall, checks := f.ready(t)
	if status != http.StatusOK || overall != "degraded" {
		t.Errorf("got %d %s, want 200 degraded", status, overall)
	}
	for name, want := range map[string]string{
		"database": "ok", "schema": "ok", "outbox": "ok",
		"publisher": "degraded not connected yet", "consumer": "degraded not connected yet",
	} {
		if checks[name] != want {
			t.Errorf("%s: %s, want %s", name, checks[name], want)
		}
	}
	if got := checks["bindings"]; !strings.HasPrefix(got, "not checked") {
		t.Errorf("bindings: %s, want not checked", got)
	}
	if a := f.get(t, "/livez"); a.status != http.StatusOK {
		t.Errorf("livez: %d", a.status)
	}
}

func TestReadyNamesWhatWaits(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.placeOrder(t)
	if _, err := f.db.Exec(t.Context(), `update outbox_messages set created_at = now() - interval '5 minutes'`); err != nil {
		t.Fatal(err)
	}
	if _, _, checks := f.ready(t); !strings.Contains(checks["outbox"], "degraded the oldest waiting message is 5m") {
		t.Errorf("outbox: %s", checks["outbox"])
	}
	if _, err := f.db.Exec(t.Context(), `update outbox_messages set status = 'Failed', failed_at = now()`); err != nil {
		t.Fatal(err)
	}
	if _, _, checks := f.ready(t); !strings.Contains(checks["outbox"], "./baton outbox list") {
		t.Errorf("outbox: %s", checks["outbox"])
	}
}

func TestNotReadyWithoutSchema(t *testing.T) {
	t.Parallel()
	url := testenv.SchemaURL(t)
	f := serviceOn(t, url)
	status, overall, checks := f.ready(t)
	if status != http.StatusServiceUnavailable || overall != "unavailable" || !strings.Contains(checks["schema"], "run: ./baton migrate") {
		t.Errorf("got %d %s, schema: %s", status, overall, checks["schema"])
	}
	if a := f.post(t, baseOrder); a.status != http.StatusServiceUnavailable {
		t.Errorf("POST: %d %s, want 503", a.status, a.body)
	}
	if _, err := provision.Migrate(t.Context(), url, migrations.FS); err != nil {
		t.Fatal(err)
	}
	f.placeOrder(t) // by itself, once the tables are there
}

// B108: the password of an unreachable database or broker is nowhere to be seen.
func TestNotReadyWithoutDatabase(t *testing.T) {
	t.Parallel()
	f := serviceOn(t, "postgres://someone:S3cr3tDb@127.0.0.1:1/none", func(c *Config) { c.AMQPURL = "amqp://someone:S3cr3tBroker@127.0.0.1:1/" })
	status, _, checks := f.ready(t)
	if status != http.StatusServiceUnavailable || !strings.HasPrefix(checks["database"], "unavailable") {
		t.Errorf("got %d, database: %s", status, checks["database"])
	}
	for _, path := range []string{"/readyz", "/livez", "/metrics", "/orders"} {
		if a := f.get(t, path); strings.Contains(string(a.body), "S3cr3t") {
			t.Errorf("%s shows a password: %s", path, a.body)
		}
	}
	if !strings.Contains(string(f.get(t, "/metrics").body), "baton_database_up 0") {
		t.Error("the metrics do not say that the database is away")
	}
}
