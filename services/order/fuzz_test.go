package order

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"example.com/baton/shared/events"
)

func bodyOf(t *testing.T, body []byte) (newOrder, error) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, "/orders", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return readNewOrder(httptest.NewRecorder(), r)
}

// B64, B66, B68, B70, B72: whatever a body is, it is refused with the name of a
// field, or it is an order within the documented limits that says what was
// written, and makes an event that consumers accept.
func FuzzReadNewOrder(f *testing.F) {
	f.Add([]byte(baseOrder))
	for _, bad := range badBodies {
		if len(bad.body) < 4096 { // longer ones only slow the search down
			f.Add([]byte(bad.body))
		}
	}
	for _, good := range goodBodies {
		f.Add([]byte(good))
	}
	for _, amount := range []string{"1.15", "4.35", "0.29", "1e5", "0.1e1", "19900e-2", "1000000000000", "1E+2"} {
		f.Add([]byte(with("199.00", amount)))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := bodyOf(t, body)
		if err != nil {
			if problem := badRefusal(asProblem(err), body); problem != "" {
				t.Fatalf("%s: %v", problem, err)
			}
			return
		}
		if problem := beyondLimits(n); problem != "" {
			t.Fatalf("accepted %s", problem)
		}
		if problem := notAsWritten(n, body); problem != "" {
			t.Fatal(problem)
		}
		again, err := bodyOf(t, encode(n))
		if err != nil {
			t.Fatalf("accepted, and not when written again: %v", err)
		}
		if d := cmp.Diff(n, again); d != "" || !bytes.Equal(n.hash(), again.hash()) {
			t.Fatalf("changed by writing it again: %s", d)
		}
		e := n.order(1, testTime).created()
		b, err := events.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		arrived, err := events.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(e, arrived); d != "" {
			t.Fatalf("the consumer reads something else: %s", d)
		}
	})
}

// badRefusal says what is wrong with the answer to a refused body.
func badRefusal(p *problem, body []byte) string {
	switch p.Status {
	case http.StatusRequestEntityTooLarge:
		if len(body) <= maxBody {
			return "called too large"
		}
		return ""
	case http.StatusBadRequest:
	default:
		return fmt.Sprintf("status %d", p.Status)
	}
	if len(p.Errors) == 0 {
		return "nothing named"
	}
	// Only what is no object at all, or has a member without a name, may have
	// nothing to name.
	isObject := jsontext.Value(body).IsValid(jsontext.AllowDuplicateNames(true)) && jsontext.Value(body).Kind() == '{'
	for _, e := range p.Errors {
		if e.Field == "" && isObject && !bytes.Contains(body, []byte(`""`)) {
			return "an object refused without the name of a field"
		}
		if e.Message == "" || len(e.Message) > 500 || len(e.Field) > 2000 {
			return "a message that says nothing, or too much"
		}
		if strings.ContainsFunc(e.Field+e.Message, unicode.IsControl) || !utf8.ValidString(e.Field+e.Message) {
			return "an answer that repeats what forges log lines"
		}
	}
	return ""
}

// beyondLimits says which documented limit n breaks. It repeats the limits
// rather than ask for them.
func beyondLimits(n newOrder) string {
	text := func(s string) bool {
		return s != "" && len(s) <= 64 && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
	}
	amount, ok := new(big.Rat).SetString(string(n.Amount))
	decimals := 0
	if _, fraction, found := strings.Cut(string(n.Amount), "."); found {
		decimals = len(fraction)
	}
	switch {
	case !text(n.CustomerID):
		return fmt.Sprintf("customerId %q", n.CustomerID)
	case len(n.Currency) != 3 || strings.ToUpper(n.Currency) != n.Currency:
		return fmt.Sprintf("currency %q", n.Currency)
	case !ok || amount.Sign() <= 0 || amount.Cmp(big.NewRat(1_000_000_000_000, 1)) > 0:
		return fmt.Sprintf("amount %s", n.Amount)
	case decimals != int(minorUnits[n.Currency]) || strings.ContainsAny(string(n.Amount), "eE+-"):
		return fmt.Sprintf("amount %s in %s", n.Amount, n.Currency)
	case len(n.Items) < 1 || len(n.Items) > 100:
		return fmt.Sprintf("%d items", len(n.Items))
	}
	for i, it := range n.Items {
		if !text(it.SKU) || it.Quantity < 1 || it.Quantity > 1_000_000 {
			return fmt.Sprintf("items[%d] %+v", i, it)
		}
	}
	return ""
}

// notAsWritten compares the numbers of n with the digits in body.
func notAsWritten(n newOrder, body []byte) string {
	var raw struct {
		Amount jsontext.Value `json:"amount"`
		Items  []struct {
			Quantity jsontext.Value `json:"quantity"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return fmt.Sprintf("accepted, and it is not JSON: %v", err)
	}
	same := func(got string, written jsontext.Value) bool {
		g, okG := new(big.Rat).SetString(got)
		w, okW := new(big.Rat).SetString(string(written))
		return okG && okW && g.Cmp(w) == 0
	}
	if !same(string(n.Amount), raw.Amount) {
		return fmt.Sprintf("amount is %s, written %s", n.Amount, raw.Amount)
	}
	for i, it := range n.Items {
		if !same(fmt.Sprint(it.Quantity), raw.Items[i].Quantity) {
			return fmt.Sprintf("items[%d].quantity is %d, written %s", i, it.Quantity, raw.Items[i].Quantity)
		}
	}
	return ""
}

// B68, B79: a key is taken as it is or refused, and never two headers as one.
func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{"k", "K", strings.Repeat("k", 255), strings.Repeat("k", 256), "", " k", "a b", "a,b", "a\x00b", "schlüssel",
		"a\n", "\u200b", `!"#$%&'()*+,-./:;<=>?@[\]^_{|}~` + "`", "\x7f"} {
		f.Add(key, "", false)
		f.Add(key, key, true)
	}
	f.Fuzz(func(t *testing.T, first, second string, twice bool) {
		values := []string{first}
		if twice {
			values = append(values, second)
		}
		key, err := idempotencyKey(http.Header{"Idempotency-Key": values})
		visible := first != "" && len(first) <= 255
		for _, c := range []byte(first) {
			visible = visible && c > ' ' && c < 0x7f
		}
		switch p := asProblem(err); {
		case err == nil && (twice || !visible):
			t.Fatalf("%q accepted", values)
		case err == nil && key != first:
			t.Fatalf("%q became %q", first, key)
		case err != nil && !twice && visible:
			t.Fatalf("%q refused", first)
		case err != nil && (key != "" || p.Status != http.StatusBadRequest || p.Errors[0].Field != "Idempotency-Key"):
			t.Fatalf("%q: %q, %v", values, key, err)
		}
	})
}

// B98: an order is found by its id as it is written, or not at all.
func FuzzOrderID(f *testing.F) {
	const id = "ORD-20260715-000001"
	for _, s := range []string{id, strings.ToLower(id), id + "0", id[:18], id + "\n", " " + id, "ORD-20260715-" + strings.Repeat("9", 19),
		"ORD-20260715-" + strings.Repeat("9", 20), "ORD-20260715-٠٠٠٠٠١", "01J473TRMPVAR7OFV1MJV8V5RM", "", "\x00", "%00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := orderID(s)
		if err != nil {
			p := asProblem(err)
			if got != "" || p.Status != http.StatusNotFound {
				t.Fatalf("%q: %q, %v", s, got, err)
			}
			if len(p.Detail) > 500 || !utf8.ValidString(p.Detail) || strings.ContainsFunc(p.Detail, unicode.IsControl) {
				t.Fatalf("the answer repeats %q", p.Detail)
			}
			return
		}
		if got != s {
			t.Fatalf("%q became %q", s, got)
		}
		day, number, _ := strings.Cut(strings.TrimPrefix(s, "ORD-"), "-")
		if s != "ORD-"+day+"-"+number || len(day) != 8 || len(number) < 6 || len(number) > 19 || strings.Trim(day+number, "0123456789") != "" {
			t.Fatalf("%q accepted", s)
		}
		if _, err := orderID(strings.ToLower(s)); err == nil {
			t.Fatalf("%q accepted in small letters", s)
		}
	})
}

// B98 of the paging: a cursor is one that we gave out, in its one spelling.
func FuzzCursor(f *testing.F) {
	good := cursorAfter(newOrder{}.order(1, testTime)).String()
	for _, s := range []string{good, good + "=", good[:len(good)-1], strings.ToLower(good), "", "LTEgT1JELTIwMjYwNzE1LTAwMDAwMQ"} {
		f.Add(s)
	}
	f.Add(base64.RawURLEncoding.EncodeToString([]byte("+1784109600000000 ORD-20260715-000001")))
	f.Fuzz(func(t *testing.T, s string) {
		c, ok := parseCursor(s)
		if !ok {
			return
		}
		if c.String() != s {
			t.Fatalf("%q and %q are the same page", s, c)
		}
		if _, err := orderID(c.id); err != nil || c.at.Time.Year() < 1970 || c.at.Time.Year() > 9999 {
			t.Fatalf("%q is %+v", s, c)
		}
	})
}
