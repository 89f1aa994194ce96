package events_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"example.com/baton/shared/events"
)

// The samples are promises: each decodes, says the same when it is written again,
// and keeps to the schema.
func TestSamplesDecodeForEver(t *testing.T) {
	schema := compile(t)
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 4 {
		t.Fatalf("samples: %v %v", files, err)
	}
	for _, file := range files {
		sample, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		e, err := events.Decode(sample)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		again, err := events.Encode(e)
		if err != nil || string(again) != string(bytes.TrimSpace(sample)) {
			t.Errorf("%s written again:\n%s\n%v", file, again, err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(again))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(doc); err != nil {
			t.Errorf("%s against the schema: %v", file, err)
		}
	}
}

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(events.Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("events.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("events.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func sample() string {
	return `{"eventId":"01J7X8A6YQ4Q9M6Q4QG7H2J8F1","eventType":"order.created","occurredAt":"2026-07-15T10:00:00Z",` +
		`"orderId":"ORD-20260715-001","customerId":"C10086","amount":199.00,"currency":"CNY","items":[{"sku":"SKU-1","quantity":2}]}`
}

func TestNewerProducersMayAddFields(t *testing.T) {
	body := strings.Replace(sample(), `{"eventId"`, `{"giftWrap":{"colour":"red"},"big":9007199254740993,"eventId"`, 1)
	e, err := events.Decode([]byte(body))
	if err != nil || e.Amount != "199.00" || e.Items[0].Quantity != 2 {
		t.Errorf("%+v %v", e, err)
	}
}

// badEvents are the sample with one part replaced, and what the error says.
var badEvents = map[string]struct{ from, to, want string }{
	"duplicate":        {`"currency":"CNY"`, `"currency":"CNY","currency":"USD"`, "duplicate"},
	"no id":            {`"eventId":"01J7X8A6YQ4Q9M6Q4QG7H2J8F1"`, `"eventId":""`, "eventId"},
	"long id":          {`01J7X8A6YQ4Q9M6Q4QG7H2J8F1`, strings.Repeat("x", 256), "eventId"},
	"no type":          {`"order.created"`, `""`, "eventType"},
	"unknown type":     {`order.created`, `order.shipped`, "order.shipped"},
	"newer version":    {`"eventType"`, `"schemaVersion":2,"eventType"`, "schemaVersion"},
	"no order":         {`ORD-20260715-001`, ``, "orderId"},
	"no time":          {`2026-07-15T10:00:00Z`, `yesterday`, "RFC 3339"},
	"year 0":           {`2026-07-15T10:00:00Z`, `0000-07-15T10:00:00Z`, "occurredAt"},
	"year -1":          {`2026-07-15T10:00:00Z`, `0000-01-01T00:00:00+23:59`, "occurredAt"},
	"year 10000":       {`2026-07-15T10:00:00Z`, `9999-12-31T23:59:59-00:01`, "occurredAt"},
	"amount as text":   {`199.00`, `"199.00"`, "amount"},
	"no items":         {`[{"sku":"SKU-1","quantity":2}]`, `[]`, "items"},
	"quantity 0":       {`"quantity":2`, `"quantity":0`, "items[0].quantity"},
	"quantity 1000001": {`"quantity":2`, `"quantity":1000001`, "items[0].quantity"},
	"quantity huge":    {`"quantity":2`, `"quantity":9007199254740993`, "items[0].quantity"},
	"quantity too big": {`"quantity":2`, `"quantity":9223372036854775808`, "quantity"},
	"quantity 1.5":     {`"quantity":2`, `"quantity":1.5`, "quantity"},
	"no sku":           {`SKU-1`, ``, "items[0].sku"},
	"two values":       {`}]}`, `}]} {}`, "after top-level"},
	"NUL":              {`C10086`, `C\u0000`, "customerId"},
	"NUL in sku":       {`SKU-1`, `SKU\u0000`, "items[0].sku"},
	"bad UTF-8":        {`C10086`, "\xff", "UTF-8"},
	"null":             {sample(), `null`, "eventId"},
	"empty":            {sample(), ``, "EOF"},
}

// B64, B66, B74 and their kind: what cannot be understood is an error that names
// the field.
func TestBadEventsAreRefused(t *testing.T) {
	for name, tt := range badEvents {
		body := strings.Replace(sample(), tt.from, tt.to, 1)
		if body == sample() {
			t.Fatalf("%s: nothing replaced", name)
		}
		if _, err := events.Decode([]byte(body)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want it to say %q", name, err, tt.want)
		}
	}
	_, err := events.Decode([]byte(strings.Replace(sample(), "order.created", "order.shipped", 1)))
	if !errors.Is(err, events.ErrUnknown) {
		t.Errorf("an unknown type is %v", err)
	}
}

// B74: an integer that a float cannot hold is exact, or refused where it is out of
// range (see above).
func TestLargeIntegersAreExact(t *testing.T) {
	const large = 9007199254740993
	e, err := events.Decode([]byte(strings.Replace(sample(), `{"eventId"`, fmt.Sprintf(`{"sequence":%d,"eventId"`, large), 1)))
	if err != nil || e.Sequence != large {
		t.Errorf("sequence %d became %d, %v", large, e.Sequence, err)
	}
	b, err := events.Encode(e)
	if err != nil || !strings.Contains(string(b), fmt.Sprintf(`"sequence":%d,`, large)) {
		t.Errorf("written again: %s, %v", b, err)
	}
}

// B70: money is the digits that were written.
func TestAmountsKeepTheirDigits(t *testing.T) {
	for _, amount := range []string{"1.15", "4.35", "0.29", "19.99", "199.00", "9007199254740993.01"} {
		e, err := events.Decode([]byte(strings.Replace(sample(), "199.00", amount, 1)))
		if err != nil || string(e.Amount) != amount {
			t.Errorf("%s became %s, %v", amount, e.Amount, err)
		}
	}
}

// B102: times are cut to microseconds and never rounded into the next day.
func TestTimesAreCut(t *testing.T) {
	late := time.Date(2026, 3, 21, 23, 59, 59, 999_999_900, time.FixedZone("", 3600)).Add(time.Hour)
	b, err := json.Marshal(events.At(late))
	if err != nil || string(b) != `"2026-03-21T23:59:59.999999Z"` {
		t.Errorf("%s, %v", b, err)
	}
}

// B96: ids made at the same moment by many goroutines differ.
func TestNewIDs(t *testing.T) {
	now := time.Now()
	var mu sync.Mutex
	seen := make(map[string]bool)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			ids := make([]string, 10_000)
			for i := range ids {
				ids[i] = events.NewID(now)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				seen[id] = true
			}
		})
	}
	wg.Wait()
	if len(seen) != 640_000 {
		t.Errorf("%d different ids of 640000", len(seen))
	}
}

func ExampleDecode() {
	e, err := events.Decode([]byte(`{"eventId":"01J7X8A6YQ4Q9M6Q4QG7H2J8F1","eventType":"order.created",
		"occurredAt":"2026-07-15T10:00:00Z","orderId":"ORD-20260715-001","sequence":1,
		"customerId":"C10086","amount":199.00,"currency":"CNY","items":[{"sku":"SKU-1","quantity":2}]}`))
	fmt.Println(e.EventID, e.Amount, e.Currency, err)
	// Output: 01J7X8A6YQ4Q9M6Q4QG7H2J8F1 199.00 CNY <nil>
}
