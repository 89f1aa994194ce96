package inventory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/shared/events"
	"example.com/baton/shared/rabbit"
)

// verdict says what the consumer will do with a delivery.
func verdict(err error) string {
	switch {
	case err == nil:
		return "done"
	case rabbit.IsPermanent(err):
		return "permanent"
	case rabbit.IsUnavailable(err):
		return "unavailable"
	}
	return "failed"
}

func verdicts(errs []error) []string {
	all := make([]string, len(errs))
	for i, err := range errs {
		all[i] = verdict(err)
	}
	return all
}

func TestWhatCannotBeReadIsPermanent(t *testing.T) {
	t.Parallel()
	good := created("ORD-1", "SKU-1×1")
	change := func(f func(*rabbit.Delivery)) rabbit.Delivery {
		d := good
		f(&d)
		return d
	}
	body := func(old, new string) rabbit.Delivery {
		return change(func(d *rabbit.Delivery) {
			if !strings.Contains(string(d.Body), old) {
				t.Fatalf("%s has no %s", d.Body, old)
			}
			d.Body = []byte(strings.ReplaceAll(string(d.Body), old, new))
		})
	}
	for name, d := range map[string]rabbit.Delivery{
		"no JSON":          body(`{`, `[`),
		"empty":            change(func(d *rabbit.Delivery) { d.Body = nil }),
		"unknown type":     change(func(d *rabbit.Delivery) { *d = body("order.created", "order.paid"); d.Type = "order.paid" }),
		"unknown version":  body(`"sequence":1`, `"sequence":1,"schemaVersion":2`),
		"not for us":       deliver(events.Event{EventID: "01A", EventType: events.InventoryReserved, OccurredAt: events.At(time.Now()), OrderID: "ORD-1"}),
		"another id":       change(func(d *rabbit.Delivery) { d.MessageID = "01X" }),
		"no message id":    change(func(d *rabbit.Delivery) { d.MessageID = "" }),
		"another type":     change(func(d *rabbit.Delivery) { d.Type = events.OrderCancelled }),
		"no type":          change(func(d *rabbit.Delivery) { d.Type = "" }),
		"quantity of zero": body(`"quantity":1`, `"quantity":0`),
		"no items":         body(`[{"sku":"SKU-1","quantity":1}]`, `[]`),
	} {
		// No database: none of these may get that far.
		h := handler{db: noDatabase{}, wake: func() { t.Errorf("%s: woke the relay", name) }}
		if got := h.Handle(t.Context(), []rabbit.Delivery{d}); verdict(got[0]) != "permanent" {
			t.Errorf("%s: %v, want a permanent error", name, got)
		}
	}
}

type noDatabase struct{}

func (noDatabase) Begin(context.Context) (pgx.Tx, error) { panic("the database was asked") }

// A bad delivery harms only itself, whether it cannot be read, is too old, or
// breaks the transaction that all of them are in.
func TestPoisonInABatchHarmsOnlyItself(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 100)
	b.exec(`alter table inventory_reservations add constraint no_poison check (order_id <> 'POISON')`)
	unreadable := created("ORD-X", "SKU-1×1")
	unreadable.Body = unreadable.Body[:len(unreadable.Body)/2]
	old := aged(created("ORD-OLD", "SKU-1×1"), 8*24*time.Hour)
	batch := []rabbit.Delivery{
		created("ORD-1", "SKU-1×1"), unreadable, created("ORD-2", "SKU-1×1"), created("POISON", "SKU-1×1"),
		created("ORD-3", "SKU-1×1"), old, cancelled("ORD-2"), created("ORD-4", "SKU-1×1"),
	}
	errs := b.Handle(t.Context(), batch)
	want := []string{"done", "permanent", "done", "failed", "done", "permanent", "done", "done"}
	if diff := cmp.Diff(want, verdicts(errs)); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s\n%v", diff, errs)
	}
	b.wantRows(ordersQuery, "(ORD-1,reserved,)", "(ORD-2,released,)", "(ORD-3,reserved,)", "(ORD-4,reserved,)")
	b.wantRows(stockQuery, "(SKU-1,100,3)")
	b.wantRows(`select count(*) from inbox_messages`, "(5)")

	// Once its cause is mended, the poison is handled like any other.
	b.exec(`alter table inventory_reservations drop constraint no_poison`)
	b.handle(batch[3])
	b.wantRows(stockQuery, "(SKU-1,100,4)")
}

// aged is d as it would have been age ago.
func aged(d rabbit.Delivery, age time.Duration) rabbit.Delivery {
	e, err := events.Decode(d.Body)
	if err != nil {
		panic(err)
	}
	e.OccurredAt = events.At(e.OccurredAt.Add(-age))
	return deliver(e)
}

func TestTooOldToDeduplicate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 100)
	old := aged(created("ORD-1", "SKU-1×1"), 7*24*time.Hour+time.Minute)
	errs := b.Handle(t.Context(), []rabbit.Delivery{old, old})
	if diff := cmp.Diff([]string{"permanent", "permanent"}, verdicts(errs)); diff != "" || !errors.Is(errs[0], errTooOld) {
		t.Errorf("verdicts %v, want permanent: too old", errs)
	}
	b.wantRows(ordersQuery)
	if b.woken != 0 {
		t.Error("woke the relay for nothing")
	}
	// A crash on the way to the dead letters brings it again, and it must not be
	// taken for handled then.
	if errs := b.Handle(t.Context(), []rabbit.Delivery{old}); verdict(errs[0]) != "permanent" {
		t.Errorf("second delivery: %v, want permanent again", errs)
	}

	// What the inbox still knows is a duplicate, however old.
	known := aged(created("ORD-2", "SKU-1×1"), 7*24*time.Hour-time.Minute)
	b.handle(known)
	b.maxAge = time.Hour
	b.handle(known)
	b.wantRows(stockQuery, "(SKU-1,100,1)")
}

// B35: what the surroundings do to a message is not its own fault.
func TestOutageIsNobodysFault(t *testing.T) {
	t.Parallel()
	t.Run("table missing", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.exec(`alter table stock rename to gone`)
		batch := []rabbit.Delivery{created("ORD-1", "SKU-1×1"), created("ORD-2", "SKU-1×1")}
		if diff := cmp.Diff([]string{"unavailable", "unavailable"}, verdicts(b.Handle(t.Context(), batch))); diff != "" {
			t.Errorf("verdicts (-want +got):\n%s", diff)
		}
		b.exec(`alter table gone rename to stock`)
		b.handle(batch...)
	})
	t.Run("database away", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none?connect_timeout=1")
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		b.handler.db = pool
		if got := verdicts(b.Handle(t.Context(), []rabbit.Delivery{created("ORD-1", "SKU-1×1")})); got[0] != "unavailable" {
			t.Errorf("verdict %v, want unavailable", got)
		}
	})
	// Somebody holds the row of SKU-1. The others are not stuck behind it.
	t.Run("one row locked", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.stock("SKU-1", 10, "SKU-2", 10)
		config := b.db.Config()
		config.ConnConfig.RuntimeParams["lock_timeout"] = "200ms"
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		b.handler.db = pool
		tx, err := b.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `select from stock where sku = 'SKU-1' for update`); err != nil {
			t.Fatal(err)
		}
		batch := []rabbit.Delivery{created("ORD-1", "SKU-2×1"), created("ORD-2", "SKU-1×1"), created("ORD-3", "SKU-2×1")}
		if diff := cmp.Diff([]string{"done", "unavailable", "done"}, verdicts(b.Handle(t.Context(), batch))); diff != "" {
			t.Errorf("verdicts (-want +got):\n%s", diff)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.handle(batch...)
		b.wantRows(stockQuery, "(SKU-1,10,1)", "(SKU-2,10,2)")
	})
}

// A batch leaves the tables as its events would have left them one by one.
func TestSetWiseEqualsOneByOne(t *testing.T) {
	t.Parallel()
	together, alone := newBench(t), newBench(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 12 {
		stock := []any{"SKU-1", 5 + r.IntN(20), "SKU-2", r.IntN(10), "SKU-3", 1000}
		sequence := randomEvents(r, 5+r.IntN(40))
		for _, b := range []*bench{together, alone} {
			b.exec(`truncate inventory_orders, inventory_reservations, inbox_messages, outbox_messages`)
			b.stock(stock...)
		}
		for len(sequence) > 0 {
			n := 1 + r.IntN(len(sequence))
			together.handle(sequence[:n]...)
			for _, d := range sequence[:n] {
				alone.handle(d)
			}
			sequence = sequence[n:]
		}
		for _, query := range []string{
			`select order_id, state, reason, event_id, cancel_event_id from inventory_orders`,
			linesQuery, stockQuery, answersQuery, `select event_id from inbox_messages`,
		} {
			if diff := cmp.Diff(alone.rows(query), together.rows(query)); diff != "" {
				t.Fatalf("%s (-one by one +as batches):\n%s", query, diff)
			}
		}
	}
	if diff := cmp.Diff(alone.seen, together.seen); diff != "" {
		t.Errorf("counted (-one by one +as batches):\n%s", diff)
	}
	for _, o := range []outcome{reserved, rejected, released, cancelledFirst, repeated, duplicate} {
		if alone.seen[o] == 0 {
			t.Errorf("the sequences had no event that was %s", o)
		}
	}
}

// randomEvents makes events of few orders for few skus, in any order, with
// repetitions.
func randomEvents(r *rand.Rand, n int) []rabbit.Delivery {
	var all []rabbit.Delivery
	for len(all) < n {
		id := fmt.Sprintf("ORD-%d", r.IntN(n))
		switch x := r.IntN(10); {
		case x < 6:
			var items []string
			for range 1 + r.IntN(3) {
				items = append(items, fmt.Sprintf("SKU-%d×%d", 1+r.IntN(4), 1+r.IntN(3))) // SKU-4 does not exist
			}
			all = append(all, created(id, items...))
		case x < 9:
			all = append(all, cancelled(id))
		case len(all) > 0:
			all = append(all, all[r.IntN(len(all))])
		}
	}
	return all
}

// However many orders want one sku, a batch writes its row once and takes as
// many statements as a batch of one.
func TestHotSKUCostsOneUpdatePerBatch(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 1_000_000)
	run := func(n int) []string {
		var batch []rabbit.Delivery
		for range n {
			batch = append(batch, created("ORD-"+events.NewID(time.Now()), "SKU-1×1"))
		}
		b.sql.take()
		b.handle(batch...)
		return b.sql.take()
	}
	one, many := run(1), run(250)
	if len(one) != len(many) {
		t.Errorf("a batch of 250 took %d statements, a batch of one %d:\n%s", len(many), len(one), strings.Join(many, "\n"))
	}
	if i := slices.IndexFunc(many, func(s string) bool { return strings.HasPrefix(s, "UPDATE 1: update stock") }); i < 0 {
		t.Errorf("no statement updates one row of stock:\n%s", strings.Join(many, "\n"))
	}
	if slices.ContainsFunc(many, func(s string) bool { return strings.Contains(s, "update inventory_orders") }) {
		t.Errorf("orders that were inserted as reserved are updated:\n%s", strings.Join(many, "\n"))
	}
	b.wantRows(stockQuery, "(SKU-1,1000000,251)")
}
