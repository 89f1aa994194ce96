package order

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// with is the base order with one part replaced.
func with(old, new string) string {
	s := strings.Replace(baseOrder, old, new, 1)
	if s == baseOrder {
		panic("nothing to replace: " + old)
	}
	return s
}

var badBodies = []struct {
	name, body string
	field      string // in the answer
}{
	// B64: keys that are there twice, or in other letters.
	{"repeated key", with(`"customerId":"C10086"`, `"customerId":"c-1","customerId":"c-2"`), "customerId"},
	{"repeated key in other case", with(`"customerId":"C10086"`, `"customerId":"c-1","CUSTOMERID":"c-2"`), "CUSTOMERID"},
	{"other case in an item", with(`"quantity":2`, `"quantity":1,"Quantity":9`), "items[0].Quantity"},
	{"repeated key in an item", with(`"quantity":2`, `"quantity":1,"quantity":9`), "items[0].quantity"},
	{"escaped repetition", with(`"customerId":"C10086"`, `"customerId":"c-1","customer\u0049d":"c-2"`), "customerId"},
	// B66: what is not one object.
	{"second value", baseOrder + " {}", ""},
	{"junk behind", baseOrder + "]]", ""},
	{"null", `null`, ""},
	{"empty", ``, ""},
	{"blanks", `  `, ""},
	{"array", `[]`, ""},
	{"string", `"x"`, ""},
	{"cut short", baseOrder[:40], ""},
	{"unknown key", with(`{"customerId"`, `{"admin":true,"customerId"`), "admin"},
	{"unknown key in an item", with(`"quantity":2`, `"quantity":2,"price":1`), "items[0].price"},
	{"very deep", strings.Repeat("[", 20_000), ""},
	// B68: text that PostgreSQL cannot store, or that forges log lines.
	{"NUL in customerId", with("C10086", `c\u0000x`), "customerId"},
	{"NUL in sku", with("SKU-1", `c\u0000x`), "items[0].sku"},
	{"escape in sku", with("SKU-1", `\u001b[31m`), "items[0].sku"},
	{"C1 control in sku", with("SKU-1", `\u009b31m`), "items[0].sku"},
	{"raw control", with("SKU-1", "a\x01b"), "items[0].sku"},
	{"invalid UTF-8", with("C10086", "a\xff"), "customerId"},
	{"overlong UTF-8", with("C10086", "\xc0\x80"), "customerId"},
	{"half a surrogate pair", with("C10086", `\ud800`), "customerId"},
	{"NUL in a key", with(`{"customerId"`, `{"a\u0000b":1,"customerId"`), "a?b"},
	// B70: amounts.
	{"amount as string", with("199.00", `"199.00"`), "amount"},
	{"amount missing", with(`"amount":199.00,`, ``), "amount"},
	{"amount null", with("199.00", "null"), "amount"},
	{"amount true", with("199.00", "true"), "amount"},
	{"amount object", with("199.00", "{}"), "amount"},
	{"amount zero", with("199.00", "0.00"), "amount"},
	{"amount minus zero", with("199.00", "-0"), "amount"},
	{"amount negative", with("199.00", "-1"), "amount"},
	{"amount too fine", with("199.00", "199.001"), "amount"},
	{"amount far too fine", with("199.00", "1e-400"), "amount"},
	{"amount absurdly fine", with("199.00", "1e-99999"), "amount"},
	{"amount absurdly large", with("199.00", "1e99999"), "amount"},
	{"amount beyond fine", with("199.00", "1e-99999999999"), "amount"},
	{"amount too large", with("199.00", "1000000000000.01"), "amount"},
	{"amount huge", with("199.00", "1e400"), "amount"},
	{"amount beyond huge", with("199.00", "1e99999999999"), "amount"},
	{"amount of many digits", with("199.00", strings.Repeat("9", 10_000)), "amount"},
	{"amount of many zeros", with("199.00", "1."+strings.Repeat("0", 10_000)), "amount"},
	{"amount NaN", with("199.00", "NaN"), "amount"},
	{"amount hexadecimal", with("199.00", "0x10"), ""},
	{"yen with decimals", `{"customerId":"C","amount":1.5,"currency":"JPY","items":[{"sku":"S","quantity":1}]}`, "amount"},
	{"dinar too fine", `{"customerId":"C","amount":1.2345,"currency":"KWD","items":[{"sku":"S","quantity":1}]}`, "amount"},
	{"unknown currency", with("CNY", "XXX"), "currency"},
	{"currency in small letters", with("CNY", "cny"), "currency"},
	{"currency missing", with(`"currency":"CNY",`, ``), "currency"},
	// B72: quantities.
	{"quantity beyond int32", with(`"quantity":2`, `"quantity":2147483648`), "items[0].quantity"},
	{"quantity max int64", with(`"quantity":2`, `"quantity":9223372036854775807`), "items[0].quantity"},
	{"quantity beyond int64", with(`"quantity":2`, `"quantity":9223372036854775808`), "items[0].quantity"},
	{"quantity above the maximum", with(`"quantity":2`, `"quantity":1000001`), "items[0].quantity"},
	{"quantity negative", with(`"quantity":2`, `"quantity":-1`), "items[0].quantity"},
	{"quantity zero", with(`"quantity":2`, `"quantity":0`), "items[0].quantity"},
	{"quantity broken", with(`"quantity":2`, `"quantity":1.5`), "items[0].quantity"},
	{"quantity as string", with(`"quantity":2`, `"quantity":"2"`), "items[0].quantity"},
	{"quantity missing", with(`,"quantity":2`, ``), "items[0].quantity"},
	// Texts and lists.
	{"customerId missing", with(`"customerId":"C10086",`, ``), "customerId"},
	{"customerId empty", with("C10086", ""), "customerId"},
	{"customerId a number", with(`"C10086"`, "7"), "customerId"},
	{"customerId too long", with("C10086", strings.Repeat("c", 65)), "customerId"},
	{"customerId too long in bytes", with("C10086", strings.Repeat("客", 22)), "customerId"},
	{"sku too long", with("SKU-1", strings.Repeat("s", 65)), "items[0].sku"},
	{"sku missing", with(`"sku":"SKU-1",`, ``), "items[0].sku"},
	{"items missing", with(`,"items":[{"sku":"SKU-1","quantity":2}]`, ``), "items"},
	{"items empty", with(`[{"sku":"SKU-1","quantity":2}]`, `[]`), "items"},
	{"items an object", with(`[{"sku":"SKU-1","quantity":2}]`, `{}`), "items"},
	{"item null", with(`[{"sku":"SKU-1","quantity":2}]`, `[null]`), "items[0].sku"},
	{"item a string", with(`{"sku":"SKU-1","quantity":2}`, `"SKU-1"`), "items[0]"},
	{"too many items", with(`[{"sku":"SKU-1","quantity":2}]`, "["+strings.Repeat(`{"sku":"S","quantity":1},`, 100)+`{"sku":"S","quantity":1}]`), "items"},
	{"second item wrong", with(`"quantity":2}`, `"quantity":2},{"sku":"SKU-2","quantity":0}`), "items[1].quantity"},
}

// B64, B66, B68, B70, B72: nothing that is wrong with a body is a 500, or an
// order; and the answer names the field.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, tt := range badBodies {
		t.Run(tt.name, func(t *testing.T) {
			a := f.post(t, tt.body)
			p := a.problem(t)
			if a.status != http.StatusBadRequest || p.Type != typeInvalid || len(p.Errors) == 0 {
				t.Fatalf("got %d %s, want 400 with errors", a.status, a.body)
			}
			if got := p.Errors[0]; got.Field != tt.field || got.Message == "" {
				t.Errorf("names %q (%s), want %q", got.Field, got.Message, tt.field)
			}
			if len(a.body) > 1000 {
				t.Errorf("the answer has %d bytes", len(a.body))
			}
		})
	}
	f.wantOrders(t, 0)
}

// All that is wrong is said at once, once the body can be read at all.
func TestAllErrorsAtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.post(t, `{"customerId":"","amount":1.234,"currency":"CNY","items":[{"sku":"","quantity":0},{"sku":"S","quantity":1}]}`)
	var fields []string
	for _, e := range a.problem(t).Errors {
		fields = append(fields, e.Field)
	}
	if got, want := strings.Join(fields, " "), "customerId amount items[0].sku items[0].quantity"; got != want {
		t.Errorf("names %s, want %s", got, want)
	}
}

var goodBodies = map[string]string{
	"the same sku on two lines": with(`"quantity":2}`, `"quantity":2},{"sku":"SKU-1","quantity":3}`), // inventory reserves the sum
	"other scripts":             with("C10086", "客户-Ω-🙂"),
	"longest texts":             with("SKU-1", strings.Repeat("s", 64)),
	"largest quantity":          with(`"quantity":2`, `"quantity":1000000`),
	"most items":                with(`[{"sku":"SKU-1","quantity":2}]`, "["+strings.Repeat(`{"sku":"S","quantity":1},`, 99)+`{"sku":"S","quantity":1}]`),
	"white space":               " \n\t" + baseOrder + "\r\n",
}

// B86 begins here: lines may name the same sku.
func TestGoodBodies(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for name, body := range goodBodies {
		if a := f.post(t, body); a.status != http.StatusCreated {
			t.Errorf("%s: %d %s, want 201", name, a.status, a.body)
		}
	}
}

// B66, B76: the content type and the size.
func TestBadEnvelopes(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, tt := range []struct {
		contentType string
		want        int
	}{
		{"application/json", 201},
		{"application/json; charset=utf-8", 201},
		{"Application/JSON; charset=UTF-8", 201},
		{"application/json; charset=gbk", 415},
		{"text/plain", 415},
		{"application/x-www-form-urlencoded", 415},
		{"application/problem+json", 415},
		{"", 415},
		{"application/json, text/plain", 415},
		{";", 415},
	} {
		a := f.do(t, http.MethodPost, "/orders", baseOrder, "Content-Type", tt.contentType)
		if a.status != tt.want {
			t.Errorf("content type %q: %d %s, want %d", tt.contentType, a.status, a.body, tt.want)
		}
	}
	for size, want := range map[int]int{maxBody: 201, maxBody + 1: 413} {
		if a := f.post(t, baseOrder+strings.Repeat(" ", size-len(baseOrder))); a.status != want {
			t.Errorf("%d bytes: %d %s, want %d", size, a.status, a.body, want)
		}
	}
	f.wantOrders(t, 4)
}

func TestIdempotencyKeyForm(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, tt := range []struct {
		name    string
		headers []string
		want    int
	}{
		{"longest", []string{"Idempotency-Key", strings.Repeat("k", 255)}, 201},
		{"all kinds", []string{"Idempotency-Key", `!"#$%&'()*+,-./:;<=>?@[\]^_{|}~` + "`"}, 201},
		{"too long", []string{"Idempotency-Key", strings.Repeat("k", 256)}, 400},
		{"empty", []string{"Idempotency-Key", ""}, 400},
		{"blank inside", []string{"Idempotency-Key", "a b"}, 400},
		{"not ASCII", []string{"Idempotency-Key", "schlüssel"}, 400},
		{"twice", []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, 400},
	} {
		a := f.post(t, baseOrder, tt.headers...)
		if a.status != tt.want {
			t.Errorf("%s: %d %s, want %d", tt.name, a.status, a.body, tt.want)
		}
		if tt.want == 400 && a.problem(t).Errors[0].Field != "Idempotency-Key" {
			t.Errorf("%s: %s does not name the header", tt.name, a.body)
		}
	}
	f.wantOrders(t, 2)
}

// B68: a NUL in a header does not get past net/http.
func TestNULInHeader(t *testing.T) {
	t.Parallel()
	f := setup(t)
	status := raw(t, f.url, "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: a\x00b\r\nContent-Length: "+
		fmt.Sprint(len(baseOrder))+"\r\n\r\n"+baseOrder)
	if !strings.HasPrefix(status, "HTTP/1.1 400") {
		t.Errorf("got %s, want 400", status)
	}
	f.wantOrders(t, 0)
}

func TestCutShortBody(t *testing.T) {
	t.Parallel()
	f := setup(t)
	status := raw(t, f.url, "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	if !strings.HasPrefix(status, "HTTP/1.1 400") {
		t.Errorf("broken chunks: got %s, want 400", status)
	}
}

// B98: an id is taken as it is written, and no other spelling finds an order.
func TestBadOrderIDs(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := f.placeOrder(t)
	for _, id := range []string{
		"01J473TRMPVAR7OFV1MJV8V5RM", "01J473TRMPVAR70FV1MJV8V5R!", strings.ToLower(o.OrderID), o.OrderID + "0", o.OrderID[:len(o.OrderID)-1],
		o.OrderID + "%20", o.OrderID + "%00", "%00", "ORD-20260715-" + strings.Repeat("9", 300), "%F0%9F%99%82", "ORD-20260715-%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1%D9%A1",
	} {
		for _, a := range []answered{f.get(t, "/orders/"+id), f.cancelOrder(t, id), f.get(t, "/timeline/"+id)} {
			if p := a.problem(t); a.status != http.StatusNotFound || p.Status != http.StatusNotFound {
				t.Errorf("%s: %d %s, want 404", id, a.status, a.body)
			}
		}
	}
	if a := f.get(t, "/orders/"+o.OrderID); a.status != http.StatusOK {
		t.Errorf("%s: %d, want 200", o.OrderID, a.status)
	}
}
