package order

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
)

type listed struct {
	Orders []Order `json:"orders"`
	Next   string  `json:"next"`
}

func (f fixture) list(t *testing.T, query url.Values) listed {
	t.Helper()
	a := f.get(t, "/orders?"+query.Encode())
	if a.status != http.StatusOK {
		t.Fatalf("list %v: %d %s", query, a.status, a.body)
	}
	var l listed
	if err := json.Unmarshal(a.body, &l, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	return l
}

// Orders placed while somebody turns the pages shift nothing and show up in no
// later page.
func TestPages(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var placed []string
	for range 25 {
		placed = append(placed, f.placeOrder(t).OrderID)
	}
	// Some at the very same moment, as several processes place them.
	if _, err := f.db.Exec(t.Context(), `update orders set created_at = (select created_at from orders where order_id = $1) where order_id = any ($2)`,
		placed[10], placed[10:15]); err != nil {
		t.Fatal(err)
	}
	var got []string
	pages := 0
	for query := (url.Values{"limit": {"4"}}); ; pages++ {
		l := f.list(t, query)
		for _, o := range l.Orders {
			got = append(got, o.OrderID)
		}
		if l.Next == "" {
			break
		}
		query.Set("cursor", l.Next)
		f.placeOrder(t)
	}
	slices.Reverse(placed)
	if diff := cmp.Diff(placed, got); diff != "" || pages != 6 {
		t.Errorf("%d pages (-placed, newest first +listed):\n%s", pages+1, diff)
	}
}

func TestListByStatus(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var cancelled []string
	for i := range 9 {
		o := f.placeOrder(t)
		if i%3 == 0 {
			f.cancelOrder(t, o.OrderID)
			cancelled = append(cancelled, o.OrderID)
		}
	}
	slices.Reverse(cancelled)
	first := f.list(t, url.Values{"status": {"cancelled"}, "limit": {"2"}})
	second := f.list(t, url.Values{"status": {"cancelled"}, "limit": {"2"}, "cursor": {first.Next}})
	var got []string
	for _, o := range append(first.Orders, second.Orders...) {
		got = append(got, o.OrderID)
	}
	if diff := cmp.Diff(cancelled, got); diff != "" || second.Next != "" {
		t.Errorf("next %q (-want +got):\n%s", second.Next, diff)
	}
	if l := f.list(t, url.Values{"status": {"rejected"}}); len(l.Orders) != 0 {
		t.Errorf("rejected: %v, want none", l.Orders)
	}
	if l := f.list(t, nil); len(l.Orders) != 9 {
		t.Errorf("%d orders without a filter, want 9", len(l.Orders))
	}
}

// A list of nothing is an empty list, not null.
func TestListNothing(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if a := f.get(t, "/orders"); string(a.body) != `{"orders":[]}` {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

func TestBadLists(t *testing.T) {
	t.Parallel()
	f := setup(t)
	good := cursorAfter(newOrder{}.order(1, testTime)).String()
	for query, field := range map[string]string{
		"limit=0":                      "limit",
		"limit=101":                    "limit",
		"limit=-1":                     "limit",
		"limit=x":                      "limit",
		"limit=":                       "limit",
		"limit=9223372036854775808":    "limit",
		"limit=1&limit=2":              "limit",
		"status=lost":                  "status",
		"status=Created":               "status",
		"status=%00":                   "status",
		"cursor=":                      "cursor",
		"cursor=x":                     "cursor",
		"cursor=%00":                   "cursor",
		"cursor=" + good[:len(good)-2]: "cursor",
		"cursor=" + good + "x":         "cursor",
		"cursor=" + good + "%3D":       "cursor",
		"cursor=MTIzNA":                "cursor",
		"cursor=" + encoded("+1"):      "cursor",
		"cursor=" + encoded("1e9"):     "cursor",
		"limti=5":                      "limti",
		"%zz":                          "",
		"a;b":                          "",
	} {
		a := f.get(t, "/orders?"+query)
		if a.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s, want 400", query, a.status, a.body)
			continue
		}
		if got := a.problem(t).Errors[0].Field; got != field {
			t.Errorf("%s: names %q, want %q", query, got, field)
		}
	}
	if a := f.get(t, "/orders?cursor="+good); a.status != http.StatusOK {
		t.Errorf("a good cursor: %d %s", a.status, a.body)
	}
}

// encoded is a cursor with these microseconds, written as the service would not.
func encoded(micros string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(micros + " ORD-20260715-000001"))
}
