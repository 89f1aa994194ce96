// Package samples makes events to measure with.
package samples

import (
	"fmt"
	"time"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// SKUs is over how many SKUs the orders of a run are spread: SKU-B0 to SKU-B999.
const SKUs = 1000

// Events are n order.created messages as the order service writes them, with
// payloads of about 250 bytes. The ids begin with prefix; each order is for one
// of the SKUs in turn, or for sku if it is given.
func Events(n int, prefix string, sku ...string) []outbox.Message {
	now := time.Now()
	msgs := make([]outbox.Message, n)
	for i := range msgs {
		e := events.Event{
			EventID: fmt.Sprintf("%s-%08d", prefix, i), EventType: events.OrderCreated, OccurredAt: events.At(now),
			OrderID: fmt.Sprintf("ORD-%s-%08d", prefix, i), Sequence: 1,
			CustomerID: "C10086", Amount: "199.00", Currency: "CNY",
			Items: []events.Item{{SKU: fmt.Sprintf("SKU-B%d", i%SKUs), Quantity: 2}},
		}
		if len(sku) > 0 {
			e.Items[0].SKU = sku[0]
		}
		payload, err := events.Encode(e)
		if err != nil {
			panic(err) // they are ours
		}
		msgs[i] = outbox.Message{
			ID: e.EventID, Type: e.EventType, AggregateID: e.OrderID, Sequence: 1, OccurredAt: now, Payload: payload,
			Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		}
	}
	return msgs
}
