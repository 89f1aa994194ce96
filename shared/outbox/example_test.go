package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

// printer is a Publisher that prints. A real one confirms only what its broker
// has taken responsibility for.
type printer struct{}

func (printer) Ready(ctx context.Context) error { return ctx.Err() }

func (printer) Publish(_ context.Context, msgs []outbox.Message, settle func(int, error)) {
	for i, m := range msgs {
		fmt.Printf("%s %s %s\n", m.ID, m.Type, m.Payload)
		settle(i, nil)
	}
}

func exampleDB() (db *pgxpool.Pool, drop func()) {
	return testenv.ExamplePool(outbox.Schema + `; create table orders (order_id text primary key)`)
}

// An order and its event are one transaction; a relay sends the event once that
// has committed.
func Example() {
	db, drop := exampleDB()
	defer drop()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()

	relay := &outbox.Relay{DB: db, Publisher: printer{}, Logger: slog.New(slog.DiscardHandler)}

	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into orders values ('ORD-1')`); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Message{
			ID: "01J7X8A6YQ4Q9M6Q4QG7H2J8F1", Type: "order.created", AggregateID: "ORD-1", Sequence: 1,
			OccurredAt: time.Now(), Payload: []byte(`{"orderId": "ORD-1"}`),
		})
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	relay.Wake() // it was committed: do not wait for the next poll

	running, cancel := context.WithCancel(ctx)
	relay.Observe = func(_ context.Context, step string, _ []string) error {
		if step == outbox.StepSettled {
			cancel() // enough for an example; Run settles what is in flight and returns
		}
		return nil
	}
	fmt.Println("relay:", relay.Run(running))
	// Output:
	// 01J7X8A6YQ4Q9M6Q4QG7H2J8F1 order.created {"orderId": "ORD-1"}
	// relay: <nil>
}

// A whole transaction in one round trip: the message is stored only if the order
// was.
func ExampleQueueIf() {
	db, drop := exampleDB()
	defer drop()
	ctx := context.Background()

	place := func(orderID, eventID string) error {
		b := &pgx.Batch{}
		b.Queue(`insert into orders values ($1) on conflict do nothing`, orderID)
		err := outbox.QueueIf(b, `exists (select 1 from orders where orders.order_id = m.aggregate_id)`, outbox.Message{
			ID: eventID, Type: "order.created", AggregateID: orderID, Sequence: 1, OccurredAt: time.Now(), Payload: []byte(`{}`),
		})
		if err != nil {
			return err
		}
		return db.SendBatch(ctx, b).Close()
	}
	fmt.Println(place("ORD-1", "e1"))
	stats, err := outbox.ReadStats(ctx, db)
	fmt.Println(stats.Pending, err)
	// Output:
	// <nil>
	// 1 <nil>
}

// The operator's side: what failed is kept, and sent again on request.
func ExampleRequeue() {
	db, drop := exampleDB()
	defer drop()
	ctx := context.Background()
	_, err := db.Exec(ctx, `insert into outbox_messages
		(event_id, aggregate_id, sequence, event_type, payload, occurred_at, status, failed_at, last_error, attempt_count)
		values ('e1', 'ORD-1', 1, 'order.created', '{}', now(), 'Failed', now(), 'unroutable', 12)`)
	if err != nil {
		fmt.Println(err)
		return
	}
	failed, err := outbox.List(ctx, db, "Failed", 100)
	fmt.Println(failed[0].EventID, failed[0].LastError, err)
	ids, err := outbox.Requeue(ctx, db, failed[0].EventID)
	fmt.Println("requeued", ids, err)
	// Output:
	// e1 unroutable <nil>
	// requeued [e1] <nil>
}

func ExamplePrune() {
	db, drop := exampleDB()
	defer drop()
	n, err := outbox.Prune(context.Background(), db, 7*24*time.Hour)
	fmt.Println(n, err)
	// Output: 0 <nil>
}
