package inventory

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/rabbit"
)

// Whatever a batch locks, it locks in the order of names. Somebody holds the
// second; a batch that names it first must be found holding the first, and so
// cannot be half of a deadlock.
func TestLocksAreTakenInOrder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		setup string // the later name comes first, as in the batch
		hold  string
		probe string // fails if the batch holds the earlier name
		batch func() []rabbit.Delivery
	}{
		{
			name:  "skus",
			hold:  `select from stock where sku = 'SKU-2' for update`,
			probe: `select from stock where sku = 'SKU-1' for update nowait`,
			batch: func() []rabbit.Delivery { return []rabbit.Delivery{created("ORD-1", "SKU-2×1", "SKU-1×1")} },
		},
		{
			name:  "orders that are known",
			setup: `insert into inventory_orders (order_id, state, event_id) values ('ORD-2', 'reserved', 'x'), ('ORD-1', 'reserved', 'y')`,
			hold:  `select from inventory_orders where order_id = 'ORD-2' for update`,
			probe: `select from inventory_orders where order_id = 'ORD-1' for update nowait`,
			batch: func() []rabbit.Delivery { return []rabbit.Delivery{cancelled("ORD-2"), cancelled("ORD-1")} },
		},
		{
			name:  "orders that are new",
			hold:  `insert into inventory_orders (order_id, state, event_id) values ('ORD-2', 'reserved', 'x')`,
			probe: `insert into inventory_orders (order_id, state, event_id) values ('ORD-1', 'reserved', 'y')`,
			batch: func() []rabbit.Delivery {
				return []rabbit.Delivery{created("ORD-2", "SKU-1×1"), created("ORD-1", "SKU-1×1")}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.stock("SKU-2", 10, "SKU-1", 10)
			if tt.setup != "" {
				b.exec(tt.setup)
			}
			held, err := b.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer held.Rollback(context.WithoutCancel(t.Context())) // or closing the pool would wait for it
			if _, err := held.Exec(t.Context(), tt.hold); err != nil {
				t.Fatal(err)
			}
			handled := make(chan []error, 1)
			go func() { handled <- b.Handle(t.Context(), tt.batch()) }()

			testenv.Eventually(t, 10*time.Second, "the batch holds the earlier name", func() error {
				probe, err := b.db.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer probe.Rollback(t.Context())
				if _, err := probe.Exec(t.Context(), `set local lock_timeout = '50ms'`); err != nil {
					t.Fatal(err)
				}
				_, err = probe.Exec(t.Context(), tt.probe)
				var pg *pgconn.PgError
				if !errors.As(err, &pg) || pg.Code != "55P03" {
					return errors.New("it is free")
				}
				return nil
			})
			if err := held.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, err := range <-handled {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}
