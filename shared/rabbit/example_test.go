package rabbit_test

import (
	"context"
	"errors"
	"fmt"

	"example.com/baton/shared/rabbit"
)

// What a handler returns decides where its message goes.
func ExampleConsumer() {
	outOfReach := errors.New("database is away")
	handle := func(_ context.Context, batch []rabbit.Delivery) []error {
		verdicts := make([]error, len(batch))
		for i, d := range batch {
			switch d.Type {
			case "order.created": // nil: acknowledged
			case "":
				verdicts[i] = rabbit.Permanent(errors.New("no type")) // final dead-letter queue, now
			case "order.cancelled":
				verdicts[i] = rabbit.Unavailable(outOfReach) // held until the outage is over
			default:
				verdicts[i] = errors.New("not today") // retry queue; after the last retry the final queue
			}
		}
		return verdicts
	}
	consumer := &rabbit.Consumer{
		URL: "amqp://inventory:secret@127.0.0.1:5672/",
		Queue: rabbit.Queue{
			Name: "inventory.order-events", Owner: "inventory",
			Source: "orders.events", Keys: []string{"order.created", "order.cancelled"},
		},
		Handle: handle,
	}
	for _, b := range consumer.Queue.Bindings() {
		fmt.Println(b)
	}
	for _, err := range handle(context.Background(), []rabbit.Delivery{{Type: "order.created"}, {}, {Type: "order.cancelled"}}) {
		fmt.Println(err, rabbit.IsPermanent(err), rabbit.IsUnavailable(err))
	}
	// Output:
	// inventory.retry → inventory.order-events.retry (inventory.order-events)
	// inventory.return → inventory.order-events (inventory.order-events)
	// inventory.dlx → inventory.order-events.dlq (inventory.order-events)
	// orders.events → inventory.order-events (order.created)
	// orders.events → inventory.order-events (order.cancelled)
	// <nil> false false
	// no type true false
	// database is away false true
}
