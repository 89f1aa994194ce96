package inventory

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/internal/testenv"
)

// web serves the routes of a service that has a database and nothing else.
func (b *bench) web() *httptest.Server {
	b.t.Helper()
	cfg, err := Config{
		DatabaseURL: "postgres://unused@127.0.0.1/unused", AMQPURL: "amqp://unused@127.0.0.1", Logger: testenv.Logger(b.t),
	}.withDefaults()
	if err != nil {
		b.t.Fatal(err)
	}
	srv := httptest.NewServer(newService(cfg, b.db).routes())
	b.t.Cleanup(srv.Close)
	return srv
}

func ask(t testing.TB, method, url string) (status int, contentType, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Content-Type"), string(text)
}

// get asks for an answer of 200 and returns it as JSON.
func get(t testing.TB, url string) map[string]any {
	t.Helper()
	status, _, body := ask(t, http.MethodGet, url)
	var v map[string]any
	if err := json.Unmarshal([]byte(body), &v); status != http.StatusOK || err != nil {
		t.Fatalf("GET %s: %d %s (%v), want 200 and JSON", url, status, body, err)
	}
	return v
}

func TestLookAtStock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 10, "a/b c%25", 3)
	b.handle(created("ORD-1", "SKU-1×4"))
	web := b.web()

	one := map[string]any{"sku": "SKU-1", "onHand": 10.0, "reserved": 4.0, "available": 6.0}
	odd := map[string]any{"sku": "a/b c%25", "onHand": 3.0, "reserved": 0.0, "available": 3.0}
	if diff := cmp.Diff(one, get(t, web.URL+"/stock/SKU-1")); diff != "" {
		t.Errorf("SKU-1 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(odd, get(t, web.URL+"/stock/a%2Fb%20c%2525")); diff != "" {
		t.Errorf("a sku that needs escaping (-want +got):\n%s", diff)
	}
	list := get(t, web.URL+"/stock")["stock"].([]any)
	if len(list) != 2 || list[0].(map[string]any)["sku"] == list[1].(map[string]any)["sku"] {
		t.Errorf("stock %v, want both skus", list)
	}

	b.exec(`insert into stock (sku, on_hand) select 'X-' || n, 1 from generate_series(1, 1500) n`)
	seen := make(map[any]bool)
	for url := "/stock"; url != ""; {
		page := get(t, web.URL+url)
		for _, line := range page["stock"].([]any) {
			seen[line.(map[string]any)["sku"]] = true
		}
		url, _ = page["next"].(string)
	}
	if len(seen) != 1502 {
		t.Errorf("%d skus on all pages, want 1502", len(seen))
	}
}

func TestLookAtAnOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 10, "SKU-2", 10)
	create, cancel := created("ORD-1", "SKU-2×1", "SKU-1×4"), cancelled("ORD-1")
	b.handle(create)
	b.handle(cancel)
	first, refused := cancelled("ORD-2"), created("ORD-3", "SKU-1×11")
	b.handle(first, refused)
	web := b.web()

	got := get(t, web.URL+"/reservations/ORD-1")
	delete(got, "createdAt")
	delete(got, "updatedAt")
	want := map[string]any{
		"orderId": "ORD-1", "state": "released", "eventId": create.MessageID, "cancelEventId": cancel.MessageID,
		"items": []any{
			map[string]any{"sku": "SKU-1", "quantity": 4.0, "status": "released"},
			map[string]any{"sku": "SKU-2", "quantity": 1.0, "status": "released"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reservation (-want +got):\n%s", diff)
	}

	for order, want := range map[string][]string{
		"ORD-1": {
			"inbox.recorded " + create.MessageID, "inventory.reserved " + create.MessageID + " SKU-1 × 4, SKU-2 × 1",
			"answer.stored inventory.reserved",
			"inbox.recorded " + cancel.MessageID, "inventory.released " + cancel.MessageID + " SKU-1 × 4, SKU-2 × 1",
		},
		"ORD-2": {"inbox.recorded " + first.MessageID, "inventory.cancelled-first " + first.MessageID + " the order will not be reserved"},
		"ORD-3": {
			"inbox.recorded " + refused.MessageID, "inventory.rejected " + refused.MessageID + " out of stock: SKU-1",
			"answer.stored inventory.rejected",
		},
	} {
		var lines []string
		for _, step := range get(t, web.URL+"/timeline/"+order)["steps"].([]any) {
			s := step.(map[string]any)
			switch s["step"] {
			case "answer.stored": // its event id is new
				lines = append(lines, fmt.Sprint(s["step"], " ", s["detail"]))
			case "inbox.recorded":
				lines = append(lines, fmt.Sprint(s["step"], " ", s["eventId"]))
			default:
				lines = append(lines, fmt.Sprint(s["step"], " ", s["eventId"], " ", s["detail"]))
			}
		}
		if diff := cmp.Diff(want, lines); diff != "" {
			t.Errorf("timeline of %s (-want +got):\n%s", order, diff)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	web := b.web()
	for _, tt := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/stock/SKU-404", 404},
		{"GET", "/reservations/ORD-404", 404},
		{"GET", "/timeline/ORD-404", 404},
		{"GET", "/nothing", 404},
		{"GET", "/stock/%00", 404},
		{"GET", "/stock/%ff", 404},
		{"GET", "/reservations/" + strings.Repeat("x", 5000), 404},
		{"GET", "/stock?after=%00", 400},
		{"POST", "/stock", 405},
		{"DELETE", "/reservations/ORD-1", 405},
		{"POST", "/faults", 404}, // only with BATON_FAULTS=1
	} {
		status, contentType, body := ask(t, tt.method, web.URL+tt.path)
		if status != tt.want || contentType != "application/problem+json" || !strings.Contains(body, fmt.Sprintf(`"status":%d`, tt.want)) {
			t.Errorf("%s %.60s: %d %s %s, want a problem of status %d", tt.method, tt.path, status, contentType, body, tt.want)
		}
	}
	if status, _, body := ask(t, http.MethodHead, web.URL+"/stock"); status != http.StatusOK || body != "" {
		t.Errorf("HEAD /stock: %d %q, want 200 without a body", status, body)
	}

	b.exec(`alter table stock rename to gone`)
	if status, _, body := ask(t, http.MethodGet, web.URL+"/stock"); status != http.StatusServiceUnavailable || strings.Contains(body, "relation") {
		t.Errorf("without the table: %d %s, want 503 and nothing of the inside", status, body)
	}
}
