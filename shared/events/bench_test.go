package events_test

import (
	"testing"

	"example.com/baton/internal/samples"
	"example.com/baton/shared/events"
)

func BenchmarkDecode(b *testing.B) {
	body := samples.Events(1, "b")[0].Payload
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := events.Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	body := samples.Events(1, "b")[0].Payload
	e, err := events.Decode(body)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := events.Encode(e); err != nil {
			b.Fatal(err)
		}
	}
}
