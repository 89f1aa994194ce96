package rabbit

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	amqp "github.com/rabbitmq/amqp091-go"
)

// The headers that a fuzzer writes: a byte for the type of a value, and then the
// value. Names and texts are most often one of words, since nothing of interest
// happens to others.
var words = []string{
	"x-death", "CC", "BCC", "x-delivery-count", "queue", "reason", "count", "exchange", "time", "routing-keys",
	"inventory.order-events", "inventory.order-events.retry", "inventory.return", "rejected", "expired", "delivery_limit", "maxlen",
	"x-first-death-queue", "x-last-death-reason", "x-acquired-count", AttemptsHeader, ReasonHeader, "traceparent", "",
}

const fieldTypes = "tBbsuIilfdDSxATFV" // as the client library knows them

// written is v as the fuzzer would have written it.
func written(b []byte, v any) []byte {
	number := func(kind byte, n uint64) []byte { return binary.BigEndian.AppendUint64(append(b, kind), n) }
	text := func(b []byte, s string) []byte {
		for i, w := range words {
			if w == s {
				return append(b, byte(i))
			}
		}
		return append(append(b, 255, byte(len(s))), s...)
	}
	switch v := v.(type) {
	case bool:
		if v {
			return number('t', 1)
		}
		return number('t', 0)
	case uint8:
		return number('B', uint64(v))
	case int8:
		return number('b', uint64(v))
	case int16:
		return number('s', uint64(v))
	case uint16:
		return number('u', uint64(v))
	case int32:
		return number('I', uint64(v))
	case uint32:
		return number('i', uint64(v))
	case int64:
		return number('l', uint64(v))
	case float32:
		return number('f', uint64(math.Float32bits(v)))
	case float64:
		return number('d', math.Float64bits(v))
	case amqp.Decimal:
		return append(number('D', uint64(v.Value)), v.Scale)
	case time.Time:
		return number('T', uint64(v.Unix()))
	case string:
		return text(append(b, 'S'), v)
	case []byte:
		return text(append(b, 'x'), string(v))
	case []any:
		b = append(b, 'A', byte(len(v)))
		for _, item := range v {
			b = written(b, item)
		}
		return b
	case amqp.Table:
		b = append(b, 'F', byte(len(v)))
		for k, item := range v {
			b = written(text(b, k), item)
		}
		return b
	}
	return append(b, 'V')
}

// readable reads what a fuzzer wrote; there is a value in any bytes.
type readable struct{ b []byte }

func (r *readable) octet() byte {
	if len(r.b) == 0 {
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *readable) number() uint64 {
	var n [8]byte
	r.b = r.b[copy(n[:], r.b):]
	return binary.BigEndian.Uint64(n[:])
}

func (r *readable) text() string {
	i := int(r.octet())
	if i < len(words) {
		return words[i]
	}
	n := min(int(r.octet()), len(r.b))
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *readable) value(depth int) any {
	kind := r.octet()
	if !strings.ContainsRune(fieldTypes, rune(kind)) {
		kind = fieldTypes[int(kind)%len(fieldTypes)]
	}
	if depth > 4 && (kind == 'A' || kind == 'F') {
		kind = 'V'
	}
	switch kind {
	case 't':
		return r.number()&1 == 1
	case 'B':
		return uint8(r.number())
	case 'b':
		return int8(r.number())
	case 's':
		return int16(r.number())
	case 'u':
		return uint16(r.number())
	case 'I':
		return int32(r.number())
	case 'i':
		return uint32(r.number())
	case 'l':
		return int64(r.number())
	case 'f':
		return math.Float32frombits(uint32(r.number()))
	case 'd':
		return math.Float64frombits(r.number())
	case 'D':
		return amqp.Decimal{Value: int32(r.number()), Scale: r.octet()}
	case 'T':
		return time.Unix(int64(r.number()), 0)
	case 'S':
		return r.text()
	case 'x':
		return []byte(r.text())
	case 'A':
		var list []any
		for range r.octet() % 16 {
			list = append(list, r.value(depth+1))
		}
		return list
	case 'F':
		return r.table(depth + 1)
	}
	return nil
}

func (r *readable) table(depth int) amqp.Table {
	t := amqp.Table{}
	for range r.octet() % 16 {
		t[r.text()] = r.value(depth)
	}
	return t
}

// echo is a channel whose broker delivers every message that it is sent.
type echo struct {
	ch   *amqp.Channel
	back <-chan amqp.Delivery
}

func newEcho(f *testing.F) echo {
	w := &wire{onPublish: func(l *link, p published) { l.deliver(p.tag, false, p.exchange, p.key, p.header, p.body) }}
	conn, err := amqp.DialConfig("amqp://guest:guest@broker/", amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		return w.connect(f.Context(), network, addr)
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { conn.Close(); w.links.Wait() })
	ch, err := conn.Channel()
	if err != nil {
		f.Fatal(err)
	}
	back, err := ch.Consume("q", "", true, false, false, false, nil)
	if err != nil {
		f.Fatal(err)
	}
	return echo{ch, back}
}

// through is msg after the client library has written and read it.
func (e echo) through(t *testing.T, exchange string, msg amqp.Publishing) amqp.Delivery {
	t.Helper()
	if err := e.ch.Publish(exchange, "order.created", false, false, msg); err != nil {
		t.Fatalf("cannot be sent: %v", err)
	}
	select {
	case d := <-e.back:
		return d
	case <-time.After(patience):
		t.Fatal("the library does not read what it has written")
		panic("unreachable")
	}
}

var sameHeaders = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateNaNs()}

// B56, B58, B60: whatever a message has in its headers, it is counted within
// bounds, and the copy of it that goes on can be sent, has lost nothing but what
// must not travel, and starts anew when it is delivered again.
func FuzzHeaders(f *testing.F) {
	q := testQueue()
	death := func(queue, reason, count any) amqp.Table {
		return amqp.Table{"queue": queue, "reason": reason, "count": count, "exchange": "orders.events", "routing-keys": []any{"order.created"}}
	}
	for _, h := range []amqp.Table{
		{},
		{"x-death": []any{death(q.Name, "rejected", int64(1)), death(q.RetryName(), "expired", int64(1))}},
		{"x-death": []any{death(q.Name, "rejected", int64(99))}},
		{"x-death": []any{death(q.Name, "delivery_limit", int64(1)), death("other", "maxlen", int64(7))}},
		{"x-death": []any{death(q.Name, "rejected", int64(math.MaxInt64)), death(q.Name, "rejected", int64(math.MaxInt64))}},
		{"x-death": []any{death(q.Name, "rejected", int64(math.MinInt64))}},
		{"x-death": []any{death(q.Name, "rejected", uint32(math.MaxUint32))}},
		{"x-death": []any{death(q.Name, "rejected", "1")}, "x-delivery-count": "1"},
		{"x-death": []any{death(q.Name, "rejected", 1.0)}, "x-delivery-count": int8(-1)},
		{"x-death": []any{death(int64(1), nil, true)}},
		{"x-death": []any{[]any{}, nil, "x"}},
		{"x-death": []any{}},
		{"x-death": "x"},
		{"x-death": nil},
		{"x-death": amqp.Table{"count": int64(1)}},
		{"x-delivery-count": int64(math.MaxInt64)},
		{"CC": []any{"elsewhere"}, "BCC": []any{"elsewhere"}, "x-first-death-queue": q.Name},
		{AttemptsHeader: "many", ReasonHeader: int64(4)},
		{"a": amqp.Table{"b": []any{int64(1), "x", nil}}, "c": time.Unix(1_800_000_000, 0), "d": amqp.Decimal{Scale: 2, Value: 19900},
			"e": []byte{0, 255}, "f": nil, "g": float32(1.5), "h": math.NaN(), "i": true, "j": uint16(1), "k": int16(-1)},
	} {
		for _, returned := range []bool{false, true} {
			f.Add(written(nil, h)[1:], returned, "m1", []byte("{}"))
		}
	}
	e := newEcho(f)
	f.Fuzz(func(t *testing.T, raw []byte, returned bool, id string, body []byte) {
		// Beyond these other limits are reached first: of a frame, and of a short string.
		raw, id, body = raw[:min(len(raw), 4096)], id[:min(len(id), 255)], body[:min(len(body), 4096)]
		exchange := "orders.events"
		if returned {
			exchange = q.returnExchange()
		}
		headers := (&readable{raw}).table(0)
		d := e.through(t, exchange, amqp.Publishing{Headers: headers, MessageId: id, Body: body, Expiration: "1000", UserId: "guest"})
		if diff := cmp.Diff(headers, d.Headers, sameHeaders); diff != "" {
			t.Fatalf("arrives otherwise: %s", diff)
		}
		r := q.receive(d)
		checkCounts(t, q, r, returned)
		for _, bare := range []bool{false, true} {
			for _, dead := range []bool{false, true} {
				checkCopy(t, q, e, parked{r, dead, errors.New("broken")}, bare)
			}
		}
	})
}

// checkCounts compares what the consumer has counted with a slower way of
// counting.
func checkCounts(t *testing.T, q Queue, r received, returned bool) {
	t.Helper()
	header, has := r.Headers["x-death"]
	if r.forged != (has && !returned) {
		t.Fatalf("forged: %t", r.forged)
	}
	if want := counted(q, header); !returned && r.pastRetries != 0 || returned && int64(r.pastRetries) != want {
		t.Fatalf("%d past retries, want %d if it has come back (%t)", r.pastRetries, want, returned)
	}
	if r.crashes < 0 || r.handed().Attempt < 1 || r.exhausted(q) != (r.pastRetries >= 3) {
		t.Fatalf("%d crashes, attempt %d, exhausted %t", r.crashes, r.handed().Attempt, r.exhausted(q))
	}
	if r.id() == "" {
		t.Fatal("no name to remember it by")
	}
}

func counted(q Queue, header any) int64 {
	const spent = 3
	entries, _ := header.([]any)
	if len(entries) == 0 {
		return spent
	}
	rejected, expired := new(big.Int), new(big.Int)
	for _, entry := range entries {
		t, ok := entry.(amqp.Table)
		if !ok {
			return spent
		}
		switch t["count"].(type) {
		case int8, uint8, int16, uint16, int32, uint32, int64:
		default:
			return spent
		}
		n, _ := integer(t["count"])
		if n < 0 {
			return spent
		}
		switch {
		case t["queue"] == q.Name && (t["reason"] == "rejected" || t["reason"] == "delivery_limit"):
			rejected.Add(rejected, big.NewInt(n))
		case t["queue"] == q.RetryName() && t["reason"] == "expired":
			expired.Add(expired, big.NewInt(n))
		}
	}
	if rejected.Cmp(expired) < 0 {
		rejected = expired
	}
	if most := big.NewInt(math.MaxInt32 - 1); rejected.Cmp(most) > 0 {
		return most.Int64()
	}
	return rejected.Int64()
}

func checkCopy(t *testing.T, q Queue, e echo, p parked, bare bool) {
	t.Helper()
	msg := p.message(bare)
	if err := (outgoing{exchange: q.deadExchange(), key: q.Name, msg: msg}).sendable(); err != nil {
		t.Fatal(err)
	}
	want := amqp.Table{}
	for k, v := range p.Headers {
		switch k {
		case "x-death", "CC", "BCC", "x-delivery-count", "x-acquired-count", "x-first-death-queue", "x-last-death-reason":
		default:
			if !bare && !strings.HasPrefix(k, "x-first-death-") && !strings.HasPrefix(k, "x-last-death-") {
				want[k] = v
			}
		}
	}
	if p.dead {
		want[AttemptsHeader], want[ReasonHeader] = int32(p.pastRetries)+1, "broken"
		if n := want[AttemptsHeader].(int32); n < 1 {
			t.Fatalf("%d attempts", n)
		}
	}
	again := e.through(t, q.deadExchange(), msg)
	if diff := cmp.Diff(want, again.Headers, sameHeaders); diff != "" {
		t.Fatalf("the copy's headers: %s", diff)
	}
	if again.MessageId != p.MessageId || string(again.Body) != string(p.Body) || again.UserId != "" || again.Expiration != "" {
		t.Fatalf("the copy is %+v", again)
	}
	if r := q.receive(again); r.forged || r.pastRetries != 0 || r.crashes != 0 {
		t.Fatalf("the copy does not start anew: %+v", r)
	}
}
