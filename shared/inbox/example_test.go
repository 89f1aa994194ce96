package inbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/inbox"
)

func exampleDB() (db *pgxpool.Pool, drop func()) {
	return testenv.ExamplePool(inbox.Schema + `; create table stock (sku text primary key, on_hand int); insert into stock values ('SKU-1', 10)`)
}

func left(db *pgxpool.Pool) (n int) {
	if err := db.QueryRow(context.Background(), `select on_hand from stock`).Scan(&n); err != nil {
		panic(err)
	}
	return n
}

// The same event twice takes one unit.
func ExampleHandle() {
	db, drop := exampleDB()
	defer drop()
	ctx := context.Background()
	takeOne := func(tx pgx.Tx, _ []string) error {
		_, err := tx.Exec(ctx, `update stock set on_hand = on_hand - 1 where sku = 'SKU-1'`)
		return err
	}
	for range 2 {
		fmt.Println(inbox.Handle(ctx, db, "stock", []string{"event-1"}, takeOne), left(db))
	}
	// Output:
	// <nil> 9
	// <nil> 9
}

// Three events are one transaction; the bad one fails alone.
func ExampleHandleBatch() {
	db, drop := exampleDB()
	defer drop()
	ctx := context.Background()
	errs := inbox.HandleBatch(ctx, db, "stock", []string{"a", "bad", "c"}, func(tx pgx.Tx, fresh []string) error {
		for _, id := range fresh {
			if id == "bad" {
				return errors.New("cannot be understood")
			}
		}
		_, err := tx.Exec(ctx, `update stock set on_hand = on_hand - $1`, len(fresh))
		return err
	})
	fmt.Println(errs, left(db))
	// Output: [<nil> cannot be understood <nil>] 8
}

// A revoked right is an outage; broken data is the message's own fault.
func ExampleOutage() {
	fmt.Println(inbox.Outage(context.DeadlineExceeded), inbox.Outage(errors.New("no such sku")))
	// Output: true false
}
