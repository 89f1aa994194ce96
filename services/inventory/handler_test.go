package inventory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/testenv"
	migrations "example.com/baton/migrations/inventory"
	"example.com/baton/shared/events"
	"example.com/baton/shared/inbox"
	"example.com/baton/shared/rabbit"
)

// bench is a migrated schema of its own with a handler on it.
type bench struct {
	t  testing.TB
	db *pgxpool.Pool
	handler
	sql   tracer
	mu    sync.Mutex
	seen  map[outcome]int
	woken int
}

func newBench(t testing.TB) *bench {
	t.Helper()
	url := testenv.SchemaURL(t)
	if _, err := provision.Migrate(t.Context(), url, migrations.FS); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, seen: make(map[outcome]int)}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = &b.sql
	if b.db, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.db.Close)
	b.handler = handler{
		db:     b.db,
		maxAge: 7 * 24 * time.Hour,
		wake:   func() { b.mu.Lock(); b.woken++; b.mu.Unlock() },
		count:  func(o outcome) { b.mu.Lock(); b.seen[o]++; b.mu.Unlock() },
	}
	return b
}

// stock replaces all stock: sku, on hand, sku, on hand, …
func (b *bench) stock(skuAndOnHand ...any) {
	b.t.Helper()
	b.exec(`delete from stock`)
	for pair := range slices.Chunk(skuAndOnHand, 2) {
		b.exec(`insert into stock (sku, on_hand) values ($1, $2)`, pair...)
	}
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// rows returns what a query finds, a line of text for each row.
func (b *bench) rows(sql string) []string {
	b.t.Helper()
	rows, err := b.db.Query(b.t.Context(), `select q::text from (`+sql+`) q order by 1`)
	if err != nil {
		b.t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.t.Fatal(err)
	}
	return lines
}

func (b *bench) wantRows(sql string, want ...string) {
	b.t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, b.rows(sql), cmp.Transformer("nil", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
		b.t.Errorf("%s (-want +got):\n%s", sql, diff)
	}
}

// handle has the batch handled and fails the test unless all of it is done.
func (b *bench) handle(batch ...rabbit.Delivery) {
	b.t.Helper()
	for i, err := range b.Handle(b.t.Context(), batch) {
		if err != nil {
			b.t.Errorf("delivery %d (%s %s): %v", i, batch[i].Type, batch[i].MessageID, err)
		}
	}
}

// wantNoErrors looks at what the database said, to tries that were hidden by
// another one too: replicas must not live on deadlocks and unique violations.
func (b *bench) wantNoErrors() {
	b.t.Helper()
	if errs := b.sql.errors(); len(errs) > 0 {
		b.t.Errorf("%d statements failed, the first with %s", len(errs), errs[0])
	}
}

const (
	ordersQuery  = `select order_id, state, reason from inventory_orders`
	linesQuery   = `select order_id, sku, quantity, status, event_id from inventory_reservations`
	stockQuery   = `select sku, on_hand, reserved from stock`
	answersQuery = `select aggregate_id, sequence, event_type, payload->>'reason' from outbox_messages`
)

func deliver(e events.Event) rabbit.Delivery {
	body, err := events.Encode(e)
	if err != nil {
		panic(err)
	}
	return rabbit.Delivery{MessageID: e.EventID, Type: e.EventType, Body: body, Attempt: 1}
}

// created is a fresh order.created with items "SKU-1×2".
func created(orderID string, items ...string) rabbit.Delivery {
	now := time.Now()
	e := events.Event{
		EventID: events.NewID(now), EventType: events.OrderCreated, OccurredAt: events.At(now), OrderID: orderID, Sequence: 1,
		CustomerID: "C10086", Amount: "199.00", Currency: "CNY",
	}
	for _, it := range items {
		var item events.Item
		sku, n, _ := strings.Cut(it, "×")
		item.SKU = sku
		if _, err := fmt.Sscan(n, &item.Quantity); err != nil {
			panic(err)
		}
		e.Items = append(e.Items, item)
	}
	return deliver(e)
}

func cancelled(orderID string) rabbit.Delivery {
	now := time.Now()
	return deliver(events.Event{
		EventID: events.NewID(now), EventType: events.OrderCancelled, OccurredAt: events.At(now), OrderID: orderID, Sequence: 2,
	})
}

func TestReserve(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 10, "SKU-2", 5)
	order := created("ORD-1", "SKU-1×2", "SKU-2×5")
	order.Headers = map[string]any{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	before := time.Now().Add(-time.Second)
	b.handle(order)

	b.wantRows(ordersQuery, "(ORD-1,reserved,)")
	b.wantRows(linesQuery, "(ORD-1,SKU-1,2,reserved,"+order.MessageID+")", "(ORD-1,SKU-2,5,reserved,"+order.MessageID+")")
	b.wantRows(stockQuery, "(SKU-1,10,2)", "(SKU-2,5,5)")
	b.wantRows(answersQuery, "(ORD-1,1,inventory.reserved,)")
	b.wantRows(`select consumer_name, event_id from inbox_messages`, "(inventory.order-events,"+order.MessageID+")")
	if b.woken != 1 || b.seen[reserved] != 1 {
		t.Errorf("relay woken %d times, counted %v, want once and one reserved", b.woken, b.seen)
	}

	var payload, headers string
	if err := b.db.QueryRow(t.Context(), `select payload, headers from outbox_messages`).Scan(&payload, &headers); err != nil {
		t.Fatal(err)
	}
	answer, err := events.Decode([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	if answer.OccurredAt.Before(before) || answer.OccurredAt.After(time.Now().Add(time.Second)) {
		t.Errorf("answer occurred at %s, want now", answer.OccurredAt)
	}
	if !strings.Contains(headers, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01") {
		t.Errorf("headers of the answer are %s, want the traceparent of the order", headers)
	}
}

func TestRefusalsOfBusinessAreAnswered(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 10, "SKU-2", 1)
	b.handle(created("ORD-1", "SKU-1×2", "SKU-2×2"))
	b.handle(created("ORD-2", "SKU-1×2", "SKU-9×1"))

	b.wantRows(ordersQuery, `(ORD-1,rejected,"out of stock: SKU-2")`, `(ORD-2,rejected,"unknown sku: SKU-9")`)
	b.wantRows(answersQuery,
		`(ORD-1,1,inventory.rejected,"out of stock: SKU-2")`, `(ORD-2,1,inventory.rejected,"unknown sku: SKU-9")`)
	b.wantRows(linesQuery)
	b.wantRows(stockQuery, "(SKU-1,10,0)", "(SKU-2,1,0)")
}

// B84: one hundred orders for ten units, on three replicas, in batches and one
// at a time.
func TestLastUnitIsSoldOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-RARE", 10)
	var batches [][]rabbit.Delivery
	for i := range 40 {
		batches = append(batches, []rabbit.Delivery{created(fmt.Sprintf("ORD-%03d", i), "SKU-RARE×1")})
	}
	for i := range 3 {
		var batch []rabbit.Delivery
		for j := range 20 {
			batch = append(batch, created(fmt.Sprintf("ORD-%d%02d", i+1, j), "SKU-RARE×1"))
		}
		batches = append(batches, batch)
	}
	work := make(chan []rabbit.Delivery, len(batches))
	for _, batch := range batches {
		work <- batch
	}
	close(work)
	var replicas sync.WaitGroup
	for range 3 {
		replicas.Go(func() {
			for batch := range work {
				b.handle(batch...)
			}
		})
	}
	replicas.Wait()

	b.wantRows(`select state, count(*) from inventory_orders group by state`, "(reserved,10)", "(rejected,90)")
	b.wantRows(`select event_type, count(*) from outbox_messages group by event_type`, "(inventory.reserved,10)", "(inventory.rejected,90)")
	b.wantRows(stockQuery, "(SKU-RARE,10,10)")
	b.wantRows(`select sum(quantity) from inventory_reservations`, "(10)")
	b.wantNoErrors()
}

// B86: lines of one order for the same sku are summed up before they are held
// against the stock.
func TestSameSKUOnTwoLines(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 5)
	b.handle(created("ORD-1", "SKU-1×3", "SKU-1×3"))
	b.wantRows(ordersQuery, `(ORD-1,rejected,"out of stock: SKU-1")`)
	b.wantRows(stockQuery, "(SKU-1,5,0)")

	b.exec(`update stock set on_hand = 6`)
	b.handle(created("ORD-2", "SKU-1×3", "SKU-1×3"))
	b.wantRows(`select sku, quantity, status from inventory_reservations where order_id = 'ORD-2'`, "(SKU-1,6,reserved)")
	b.wantRows(stockQuery, "(SKU-1,6,6)")
}

func TestCancel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		batches func(create, cancel rabbit.Delivery) [][]rabbit.Delivery
		orders  string
		answers []string
		status  []string
	}{
		{"after", func(create, cancel rabbit.Delivery) [][]rabbit.Delivery {
			return [][]rabbit.Delivery{{create}, {cancel}}
		},
			"(ORD-1,released,)", []string{"(ORD-1,1,inventory.reserved,)"}, []string{"(SKU-1,2,released)"}},
		{"before", func(create, cancel rabbit.Delivery) [][]rabbit.Delivery {
			return [][]rabbit.Delivery{{cancel}, {create}}
		},
			"(ORD-1,cancelled_first,)", nil, nil},
		{"after, in the same batch", func(create, cancel rabbit.Delivery) [][]rabbit.Delivery { return [][]rabbit.Delivery{{create, cancel}} },
			"(ORD-1,released,)", []string{"(ORD-1,1,inventory.reserved,)"}, []string{"(SKU-1,2,released)"}},
		{"before, in the same batch", func(create, cancel rabbit.Delivery) [][]rabbit.Delivery { return [][]rabbit.Delivery{{cancel, create}} },
			"(ORD-1,cancelled_first,)", nil, nil},
		{"twice", func(create, cancel rabbit.Delivery) [][]rabbit.Delivery {
			return [][]rabbit.Delivery{{create}, {cancel}, {cancelled("ORD-1")}}
		}, "(ORD-1,released,)", []string{"(ORD-1,1,inventory.reserved,)"}, []string{"(SKU-1,2,released)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.stock("SKU-1", 2)
			for _, batch := range tt.batches(created("ORD-1", "SKU-1×2"), cancelled("ORD-1")) {
				b.handle(batch...)
			}
			b.wantRows(ordersQuery, tt.orders)
			b.wantRows(answersQuery, tt.answers...)
			b.wantRows(`select sku, quantity, status from inventory_reservations`, tt.status...)
			b.wantRows(stockQuery, "(SKU-1,2,0)")

			b.handle(created("ORD-2", "SKU-1×2"))
			b.wantRows(stockQuery, "(SKU-1,2,2)") // what was given back can be sold again
		})
	}
}

func TestCancelOfWhatWasRejectedChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 1)
	b.handle(created("ORD-1", "SKU-1×2"))
	b.handle(cancelled("ORD-1"))
	b.wantRows(ordersQuery, `(ORD-1,rejected,"out of stock: SKU-1")`)
	b.wantRows(stockQuery, "(SKU-1,1,0)")
}

// Create and cancel of one order at the same moment on two replicas, a thousand
// times: one of two outcomes, and never a unit that nobody gives back.
func TestCreateAndCancelAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 10, "SKU-2", 10)
	const orders = 1000
	for i := range orders {
		id := fmt.Sprintf("ORD-%04d", i)
		create, cancel := created(id, "SKU-2×1", "SKU-1×2"), cancelled(id)
		start := make(chan struct{})
		var replicas sync.WaitGroup
		for _, d := range []rabbit.Delivery{create, cancel} {
			replicas.Go(func() {
				<-start
				b.handle(d)
			})
		}
		close(start)
		replicas.Wait()
	}
	t.Logf("outcomes: %v", b.rows(`select state, count(*) from inventory_orders group by state`))
	b.wantRows(`select count(*) from inventory_orders where state in ('released', 'cancelled_first')`, fmt.Sprintf("(%d)", orders))
	b.wantRows(stockQuery, "(SKU-1,10,0)", "(SKU-2,10,0)")
	b.wantRows(`select o.order_id from inventory_orders o
		where (o.state = 'released') <> exists (select 1 from outbox_messages m where m.aggregate_id = o.order_id)
		   or (o.state = 'released') <> exists (select 1 from inventory_reservations r where r.order_id = o.order_id and r.status = 'released')`)
	b.wantRows(`select * from inventory_reservations where status = 'reserved'`)
	b.wantNoErrors()
}

// Two cancels of one order at once give its units back once.
func TestTwoCancelsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 1000)
	b.handle(created("ORD-KEPT", "SKU-1×500")) // so that the check of the table does not save us
	const orders = 200
	for i := range orders {
		id := fmt.Sprintf("ORD-%04d", i)
		b.handle(created(id, "SKU-1×2"))
		var replicas sync.WaitGroup
		for range 2 {
			replicas.Go(func() { b.handle(cancelled(id)) })
		}
		replicas.Wait()
	}
	b.wantRows(stockQuery, "(SKU-1,1000,500)")
	if b.seen[released] != orders || b.seen[repeated] != orders {
		t.Errorf("counted %v, want %d released and as many repeated", b.seen, orders)
	}
	b.wantNoErrors()
}

// Batches on four replicas that meet in orders and in skus, but have no event in
// common, so that nothing lines them up beforehand: no deadlock, and what is
// reserved is what the stock says.
func TestOverlappingBatches(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`delete from stock`)
	b.exec(`insert into stock (sku, on_hand) select 'SKU-' || n, 100000 from generate_series(0, 19) n`)
	var replicas sync.WaitGroup
	for replica := range 4 {
		r := rand.New(rand.NewPCG(1, uint64(replica)))
		var mine []rabbit.Delivery
		for i := range 400 {
			shared, own := fmt.Sprintf("ORD-%03d", i), fmt.Sprintf("ORD-%d-%03d", replica, i)
			mine = append(mine, created(own, fmt.Sprintf("SKU-%d×1", r.IntN(20)), fmt.Sprintf("SKU-%d×2", r.IntN(20))))
			if replica%2 == 0 {
				mine = append(mine, created(shared, fmt.Sprintf("SKU-%d×1", r.IntN(20)), fmt.Sprintf("SKU-%d×2", r.IntN(20))))
			} else {
				mine = append(mine, cancelled(shared))
			}
		}
		shuffle(r, mine)
		replicas.Go(func() {
			for batch := range slices.Chunk(mine, 40) {
				b.handle(batch...)
			}
		})
	}
	replicas.Wait()
	b.wantRows(`select count(*) from inventory_orders`, "(2000)")
	b.wantRows(`select s.sku, s.reserved, h.held from stock s
		left join (select sku, sum(quantity) held from inventory_reservations where status = 'reserved' group by sku) h using (sku)
		where s.reserved <> coalesce(h.held, 0)`)
	b.wantNoErrors()
}

func shuffle[T any](r *rand.Rand, s []T) {
	r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}

// B42: the same events at two replicas at once, and twice in one batch.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 1000)
	var once, twice []rabbit.Delivery
	for i := range 200 {
		d := created(fmt.Sprintf("ORD-%03d", i), "SKU-1×1")
		once, twice = append(once, d), append(twice, d, d)
	}
	var replicas sync.WaitGroup
	replicas.Go(func() { b.handle(once...) })
	replicas.Go(func() { b.handle(twice...) })
	replicas.Wait()
	b.handle(once...)

	b.wantRows(`select count(*) from inventory_reservations`, "(200)")
	b.wantRows(`select count(*) from outbox_messages`, "(200)")
	b.wantRows(stockQuery, "(SKU-1,1000,200)")
	if want := map[outcome]int{reserved: 200, duplicate: 600}; !cmp.Equal(b.seen, want) {
		t.Errorf("counted %v, want %v", b.seen, want)
	}
	b.wantNoErrors()
}

// B44: another consumer on the same database handles the same events for a
// purpose of its own.
func TestInboxIsPerConsumer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 100)
	var batch []rabbit.Delivery
	var ids []string
	for i := range 10 {
		batch = append(batch, created(fmt.Sprintf("ORD-%d", i), "SKU-1×1"))
		ids = append(ids, batch[i].MessageID)
	}
	b.handle(batch...)
	var handled []string
	err := inbox.Handle(t.Context(), b.db, "statistics", ids, func(_ pgx.Tx, fresh []string) error { handled = fresh; return nil })
	if err != nil || !slices.Equal(handled, ids) {
		t.Errorf("the other consumer handled %v (%v), want all ten", handled, err)
	}
	b.wantRows(`select consumer_name, count(*) from inbox_messages group by 1`, "(inventory.order-events,10)", "(statistics,10)")
}

// B46: an old event comes back after its inbox row was purged, or the order's
// event was made again under another id.
func TestReplayAfterPurge(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.stock("SKU-1", 10)
	create, cancel := created("ORD-1", "SKU-1×1"), cancelled("ORD-2")
	b.handle(create, created("ORD-2", "SKU-1×1"), cancel)
	b.exec(`delete from inbox_messages`)
	b.handle(create, cancel)
	b.handle(created("ORD-1", "SKU-1×4"))

	b.wantRows(ordersQuery, "(ORD-1,reserved,)", "(ORD-2,released,)")
	b.wantRows(`select order_id, quantity, status from inventory_reservations`, "(ORD-1,1,reserved)", "(ORD-2,1,released)")
	b.wantRows(stockQuery, "(SKU-1,10,1)")
	b.wantRows(`select count(*) from outbox_messages`, "(2)")
	if b.seen[repeated] != 3 {
		t.Errorf("counted %v, want three repeated", b.seen)
	}
}
