package rabbit

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// book writes down what a channel was asked, and knows what is left open.
type book struct {
	asked []string
	open  []uint64
}

func (b *book) Ack(tag uint64, multiple bool) error {
	b.asked = append(b.asked, fmt.Sprintf("ack %d %t", tag, multiple))
	b.open = slices.DeleteFunc(b.open, func(t uint64) bool { return t == tag || (multiple && t < tag) })
	return nil
}

func (b *book) Nack(tag uint64, _, _ bool) error {
	b.asked = append(b.asked, fmt.Sprintf("nack %d", tag))
	b.open = slices.DeleteFunc(b.open, func(t uint64) bool { return t == tag })
	return nil
}

// B37: one ack speaks for many only where everything below it is settled.
func TestMultipleNeverReachesWhatIsOpen(t *testing.T) {
	t.Parallel()
	b := &book{open: []uint64{1, 2, 3, 4, 5, 6, 7, 8}}
	s := newSettler(b)
	for _, tag := range b.open {
		s.take(tag)
	}
	for _, step := range []struct {
		do   func() error
		want []string
		open []uint64
	}{
		{func() error { return s.ack(1, 2, 3) }, []string{"ack 3 true"}, []uint64{4, 5, 6, 7, 8}},
		{func() error { return s.ack(6, 5) }, []string{"ack 5 false", "ack 6 false"}, []uint64{4, 7, 8}},
		{func() error { return s.retry(7) }, []string{"nack 7"}, []uint64{4, 8}},
		{func() error { return s.ack(4) }, []string{"ack 4 false"}, []uint64{8}},
		{func() error { return s.ack(8) }, []string{"ack 8 false"}, nil},
	} {
		b.asked = nil
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(step.want, b.asked); d != "" {
			t.Error(d)
		}
		if !slices.Equal(step.open, b.open) {
			t.Errorf("open %v, want %v", b.open, step.open)
		}
	}
}

// A round leaves two entries, and only one is counted.
func TestPastRetries(t *testing.T) {
	t.Parallel()
	q := testQueue()
	entry := func(queue, reason string, count any) amqp.Table {
		return amqp.Table{"queue": queue, "reason": reason, "count": count}
	}
	main, retry := q.Name, q.RetryName()
	for name, tt := range map[string]struct {
		header any
		want   int
	}{
		"first round":            {[]any{entry(retry, "expired", int64(1)), entry(main, "rejected", int64(1))}, 1},
		"third round":            {[]any{entry(retry, "expired", int64(3)), entry(main, "rejected", int64(3))}, 3},
		"forwarded by hand":      {[]any{entry(retry, "expired", int64(2)), entry(main, "rejected", int64(1))}, 2},
		"delivery limit":         {[]any{entry(retry, "expired", int64(1)), entry(main, "delivery_limit", int64(1))}, 1},
		"of other queues":        {[]any{entry("other", "rejected", int64(9)), entry(retry, "expired", int64(1))}, 1},
		"narrow":                 {[]any{entry(main, "rejected", int8(2))}, 2},
		"no header":              {nil, 3},
		"no list":                {"x", 3},
		"no table":               {[]any{"x"}, 3},
		"count is text":          {[]any{entry(main, "rejected", "1")}, 3},
		"count is negative":      {[]any{entry(main, "rejected", int64(-1))}, 3},
		"count is missing":       {[]any{amqp.Table{"queue": main, "reason": "rejected"}}, 3},
		"count is out of bounds": {[]any{entry(main, "rejected", int64(1)<<40)}, 1<<31 - 2},
		"counts overflow":        {[]any{entry(main, "rejected", int64(1)<<62), entry(main, "rejected", int64(1)<<62), entry(main, "rejected", int64(1))}, 1<<31 - 2},
	} {
		if got := q.pastRetries(tt.header); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}
