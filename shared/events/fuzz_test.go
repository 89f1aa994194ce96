package events_test

import (
	"bytes"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"example.com/baton/shared/events"
)

// B64, B66, B68, B70, B74: whatever a body is, it is refused, or it is an event
// within its bounds that says digit for digit what was written and says the same
// when it is written again.
func FuzzDecode(f *testing.F) {
	samples, err := filepath.Glob("testdata/*.json")
	if err != nil || len(samples) == 0 {
		f.Fatalf("samples: %v %v", samples, err)
	}
	for _, file := range samples {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, bad := range badEvents {
		f.Add([]byte(strings.Replace(sample(), bad.from, bad.to, 1)))
	}
	for _, amount := range []string{"1.15", "-0", "1e5", "1E-400", "9007199254740993.01"} {
		f.Add([]byte(strings.Replace(sample(), "199.00", amount, 1)))
	}
	f.Add([]byte(strings.Replace(sample(), "2026-07-15T10:00:00Z", "2026-03-21T23:59:59.9999999+01:00", 1)))
	f.Add([]byte(strings.Replace(sample(), `"eventId"`, `"big":9007199254740993,"eventId"`, 1)))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := events.Decode(body)
		if err != nil {
			if d := cmp.Diff(events.Event{}, e); d != "" {
				t.Fatalf("refused (%v), and there is an event all the same: %s", err, d)
			}
			return
		}
		if problem := outOfBounds(e); problem != "" {
			t.Fatalf("accepted %s: %+v", problem, e)
		}
		if problem := notAsWritten(e, body); problem != "" {
			t.Fatal(problem)
		}
		again, err := events.Encode(e)
		if err != nil {
			t.Fatalf("accepted and cannot be written again: %v", err)
		}
		if !utf8.Valid(again) || bytes.Contains(again, []byte(`\u0000`)) && !bytes.Contains(again, []byte(`\\u0000`)) {
			t.Fatalf("PostgreSQL could not store %q", again)
		}
		same, err := events.Decode(again)
		if err != nil {
			t.Fatalf("%s\nwritten again cannot be read: %v", again, err)
		}
		if d := cmp.Diff(e, same); d != "" {
			t.Fatalf("changed by writing it again: %s", d)
		}
	})
}

// outOfBounds says which bound e breaks. It repeats the bounds rather than ask
// the package for them.
func outOfBounds(e events.Event) string {
	switch {
	case e.EventID == "" || len(e.EventID) > 255:
		return "an eventId of a wrong length"
	case e.OrderID == "" || len(e.OrderID) > 64:
		return "an orderId of a wrong length"
	case e.OccurredAt.Year() < 1 || e.OccurredAt.Year() > 9999 || e.OccurredAt.IsZero():
		return "a time that RFC 3339 cannot say"
	case e.OccurredAt.Nanosecond()%1000 != 0:
		return "a time finer than microseconds"
	case e.Sequence < 0:
		return "a sequence below zero"
	case e.SchemaVersion < 0 || e.SchemaVersion > 1:
		return "a version of the schema that nobody knows"
	case e.EventType == events.InventoryRejected && e.Reason == "":
		return "a rejection without its reason"
	}
	for _, text := range []string{e.EventID, e.OrderID, e.CustomerID, e.Currency, e.Reason} {
		if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return "text that PostgreSQL cannot store"
		}
	}
	switch e.EventType {
	case events.OrderCancelled, events.InventoryReserved, events.InventoryRejected:
		return ""
	case events.OrderCreated:
	default:
		return "an unknown type"
	}
	if e.CustomerID == "" || e.Amount == "" || e.Currency == "" || len(e.Items) == 0 {
		return "an order that lacks something"
	}
	for _, it := range e.Items {
		if it.SKU == "" || len(it.SKU) > 64 || strings.ContainsRune(it.SKU, 0) {
			return "a wrong sku"
		}
		if it.Quantity < 1 || it.Quantity > events.MaxQuantity {
			return "a quantity out of range"
		}
	}
	return ""
}

// notAsWritten compares the numbers of e with the digits in body, which it reads
// without any of the types of the package.
func notAsWritten(e events.Event, body []byte) string {
	var raw struct {
		Sequence jsontext.Value `json:"sequence"`
		Amount   jsontext.Value `json:"amount"`
		Items    []struct {
			Quantity jsontext.Value `json:"quantity"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return fmt.Sprintf("accepted, and it is not JSON: %v", err)
	}
	whole := func(name string, got int64, written jsontext.Value) string {
		if len(written) == 0 || written.Kind() == 'n' {
			if got != 0 {
				return fmt.Sprintf("%s is %d, and nothing was written", name, got)
			}
			return ""
		}
		want, ok := new(big.Int).SetString(string(written), 10)
		if !ok || want.Cmp(big.NewInt(got)) != 0 {
			return fmt.Sprintf("%s is %d, written %s", name, got, written)
		}
		return ""
	}
	if problem := whole("sequence", e.Sequence, raw.Sequence); problem != "" {
		return problem
	}
	if written := string(raw.Amount); string(e.Amount) != written && written != "null" {
		return fmt.Sprintf("amount is %s, written %s", e.Amount, raw.Amount)
	}
	if len(raw.Items) != len(e.Items) {
		return fmt.Sprintf("%d items, written %d", len(e.Items), len(raw.Items))
	}
	for i, it := range e.Items {
		if problem := whole(fmt.Sprintf("items[%d].quantity", i), it.Quantity, raw.Items[i].Quantity); problem != "" {
			return problem
		}
	}
	return ""
}

// B96, B98: an id bears the time it was made for, in the one spelling that a
// strict parser takes, and no two are the same.
func FuzzNewID(f *testing.F) {
	for _, t := range []time.Time{
		{}, time.UnixMilli(0), time.UnixMilli(-1), time.Date(2026, 7, 15, 10, 0, 0, 999_999_999, time.UTC),
		time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), time.UnixMilli(1<<48 - 1), time.UnixMilli(1 << 48),
	} {
		f.Add(t.UnixMilli())
	}
	f.Fuzz(func(t *testing.T, millis int64) {
		millis &= int64(ulid.MaxTime()) // what a ULID can say: 1970 to 10889
		at := time.UnixMilli(millis)
		id := events.NewID(at)
		parsed, err := ulid.ParseStrict(id)
		if err != nil || parsed.String() != id || len(id) != 26 {
			t.Fatalf("%q: %v", id, err)
		}
		if int64(parsed.Time()) != millis {
			t.Fatalf("%q is of %d, made for %d", id, parsed.Time(), millis)
		}
		if again := events.NewID(at); again == id {
			t.Fatalf("%q twice", id)
		}
	})
}
