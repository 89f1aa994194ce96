package inventory

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
)

// B98: a path names what it spells, and nothing else, however it is escaped.
func FuzzPathName(f *testing.F) {
	for _, s := range []string{"ORD-20260715-000001", "ord-20260715-000001", "SKU%2D1", "SKU%2d1", "%00", "%F0%9F%99%82", "%ff", "%", "a%2Fb", "a+b%2Fc", "a%252Fb",
		strings.Repeat("s", 64), strings.Repeat("s", 65), "%20", "", ".", ".."} {
		f.Add(s)
	}
	var got string
	var err error
	called := false
	routes := chi.NewRouter()
	routes.Get("/reservations/{orderId}", func(_ http.ResponseWriter, r *http.Request) {
		called = true
		got, err = pathName(r, "orderId")
	})
	f.Fuzz(func(t *testing.T, segment string) {
		u, parseErr := url.ParseRequestURI("/reservations/" + segment)
		if parseErr != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(segment, "/") {
			return // the server takes it for no path, or for one of more segments
		}
		called, got, err = false, "", nil
		routes.ServeHTTP(httptest.NewRecorder(), &http.Request{Method: http.MethodGet, URL: u})
		if !called {
			return // not found
		}
		want, unescapeErr := url.PathUnescape(segment)
		isName := unescapeErr == nil && want != "" && len(want) <= 64 && utf8.ValidString(want) && !strings.Contains(want, "\x00")
		switch {
		case err == nil && got != want:
			t.Fatalf("%q names %q", segment, got)
		case err == nil && !isName:
			t.Fatalf("%q accepted", segment)
		case err != nil && isName:
			t.Fatalf("%q refused: %v", segment, err)
		}
	})
}
