package order

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/shared/outbox"
)

// together stores orders that are placed at the same time in one transaction: a
// commit costs the same for many. A request that comes alone is stored at once,
// and those that come while a transaction is under way are the next one. Nothing
// waits for others to come.
type together struct {
	db      *pgxpool.Pool
	timeout time.Duration // of a transaction
	turns   chan struct{} // held by whoever stores

	mu      sync.Mutex
	waiting []*placing
}

const (
	storeAtOnce = 100 // orders in a transaction
	storeTurns  = 2   // transactions under way
)

func newTogether(db *pgxpool.Pool, timeout time.Duration) *together {
	return &together{db: db, timeout: timeout, turns: make(chan struct{}, storeTurns)}
}

// placing is an order to be stored.
type placing struct {
	order Order
	key   string // may be empty
	mine  placed
	event outbox.Message

	first placed // whose order the key is
	err   error
	done  chan struct{}
}

// place stores p, or finds the order that has its key.
func (t *together) place(ctx context.Context, p *placing) (placed, error) {
	p.done = make(chan struct{})
	t.mu.Lock()
	t.waiting = append(t.waiting, p)
	t.mu.Unlock()
	for {
		select {
		case <-p.done:
			return p.first, p.err
		case t.turns <- struct{}{}:
			t.turn(ctx)
		case <-ctx.Done():
			if t.withdraw(p) {
				return placed{}, fmt.Errorf("wait for a turn: %w", ctx.Err())
			}
			<-p.done // it is being stored
			return p.first, p.err
		}
	}
}

// turn stores what waits. It has a time of its own: the request that happens to
// do it for others may have none left.
func (t *together) turn(ctx context.Context) {
	defer func() { <-t.turns }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.timeout)
	defer cancel()
	t.store(ctx, t.take())
}

// take returns what waits, oldest first, for whoever has the turn. It may be that
// others have stored all of it.
func (t *together) take() []*placing {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(len(t.waiting), storeAtOnce)
	batch := t.waiting[:n:n]
	t.waiting = t.waiting[n:]
	return batch
}

// withdraw reports whether p was still waiting, and takes it out.
func (t *together) withdraw(p *placing) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, other := range t.waiting {
		if other == p {
			t.waiting = append(t.waiting[:i:i], t.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// store stores a batch in one transaction. If the database refuses that, each is
// stored alone, so that a bad one harms only itself.
func (t *together) store(ctx context.Context, batch []*placing) {
	if len(batch) == 0 {
		return
	}
	b, err := transaction(batch)
	if err == nil {
		err = t.commit(ctx, b)
	}
	if len(batch) > 1 && isOnesFault(err) {
		for _, p := range batch {
			t.store(ctx, []*placing{p})
		}
		return
	}
	for _, p := range batch {
		if err != nil {
			p.err = err
		}
		close(p.done)
	}
}

// isOnesFault reports whether one order may have kept the others from being
// stored.
func isOnesFault(err error) bool {
	return wasRefused(err) || errors.Is(err, errUnsendable) || errors.As(err, new(pgx.ErrPreprocessingBatch))
}

// The batch is one transaction but several statements, each of which sees what
// was committed before it. So a request that loses the race for its key waits
// here until the winner has committed, and then reads the winner's answer in the
// same round trip. In a single statement with several parts it would see neither
// its own row nor the winner's.
//
// Keys are taken in their order, so that two batches never wait for each other.
const claimKeysSQL = `
insert into idempotency_keys (key, request_hash, order_id, answer)
select k.* from unnest($1::text[], $2::bytea[], $3::text[], $4::text[]) as k (key, request_hash, order_id, answer)
order by k.key
on conflict (key) do nothing`

// An order is stored unless another one has its key.
const insertOrdersSQL = `
insert into orders (order_id, event_id, customer_id, amount, currency, items, created_at, updated_at)
select o.order_id, o.event_id, o.customer_id, o.amount::numeric, o.currency, o.items::jsonb, o.at, o.at
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::text[])
  as o (order_id, event_id, customer_id, amount, currency, items, at, key)
where o.key = '' or o.order_id = (select k.order_id from idempotency_keys k where k.key = o.key)`

// An event is stored if its order was. The id of an order is used once, so the
// row can only be that of this transaction. Unlike an exists, a select of one
// value is looked up by the key for each, whatever the planner believes of a table
// that has just begun to grow.
const orderIsStored = `(select true from orders where orders.order_id = m.aggregate_id)`

const firstAnswersSQL = `
select key, order_id, request_hash, answer from idempotency_keys where key = any ($1)`

// transaction is everything that stores a batch, in one round trip.
func transaction(batch []*placing) (*pgx.Batch, error) {
	b := &pgx.Batch{}
	byKey := make(map[string][]*placing)
	var keys, orders, answers []string
	var hashes [][]byte
	events := make([]outbox.Message, len(batch))
	for i, p := range batch {
		p.first, p.err = p.mine, nil // unless the key turns out to be another one's
		events[i] = p.event
		if p.key != "" {
			byKey[p.key] = append(byKey[p.key], p)
			keys, hashes = append(keys, p.key), append(hashes, p.mine.hash)
			orders, answers = append(orders, p.mine.orderID), append(answers, string(p.mine.answer))
		}
	}
	onlyIf := "true"
	if len(keys) > 0 {
		b.Queue(claimKeysSQL, keys, hashes, orders, answers)
		onlyIf = orderIsStored
	}
	queueOrders(b, batch)
	if err := outbox.QueueIf(b, onlyIf, events...); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsendable, err)
	}
	if len(keys) > 0 {
		b.Queue(firstAnswersSQL, keys).Query(func(rows pgx.Rows) error {
			var key string
			var first placed
			_, err := pgx.ForEachRow(rows, []any{&key, &first.orderID, &first.hash, &first.answer}, func() error {
				for _, p := range byKey[key] {
					p.first = first
				}
				delete(byKey, key)
				return nil
			})
			for _, ps := range byKey {
				for _, p := range ps {
					p.err = errKeyExpired
				}
			}
			return err
		})
	}
	return b, nil
}

func queueOrders(b *pgx.Batch, batch []*placing) {
	n := len(batch)
	columns := make([][]string, 7)
	times := make([]time.Time, 0, n)
	for _, p := range batch {
		for i, v := range []string{p.order.OrderID, p.order.EventID, p.order.CustomerID, string(p.order.Amount), p.order.Currency, string(encode(p.order.Items)), p.key} {
			columns[i] = append(columns[i], v)
		}
		times = append(times, p.order.CreatedAt.Time)
	}
	b.Queue(insertOrdersSQL, columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], times, columns[6])
}

// commit sends b, which is a transaction of its own: without a BEGIN in it the
// server commits it as a whole when it has run all of it, and [pgx.BatchResults]
// is not closed before that is known.
func (t *together) commit(ctx context.Context, b *pgx.Batch) error {
	conn, err := t.db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	return outcome(conn.SendBatch(ctx, b).Close())
}

var (
	// errKeyExpired: the key was another one's when we tried to take it, and was
	// pruned before we could read it. Nothing is stored for it.
	errKeyExpired = errors.New("the Idempotency-Key has just expired")
	errUnsendable = errors.New("an event that cannot be sent")
)

// outcome tells errors after which nothing was changed from those that may have
// hidden a commit.
func outcome(err error) error {
	switch {
	case err == nil, wasRefused(err):
		return err
	case errors.As(err, new(pgx.ErrPreprocessingBatch)), pgconn.SafeToRetry(err): // not sent
		return err
	}
	return fmt.Errorf("%w: %w", errOutcomeUnknown, err)
}

// wasRefused reports whether the database said no, and so has changed nothing. A
// FATAL may come after the commit.
func wasRefused(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR"
}
