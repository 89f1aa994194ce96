package order

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// clockTrust is for how long the service goes by its own idea of the database's
// time before it asks again. Two clocks of ordinary quality drift apart by some
// milliseconds in it.
const clockTrust = time.Minute

// numbers hands out order numbers and the time that goes with them. Both come
// from the database, a block of numbers together with its clock, so that an
// order costs no round trip for them and no order bears the time of a process
// whose clock is wrong. In between, time goes on by the monotonic clock, which
// nobody sets.
type numbers struct {
	db    *pgxpool.Pool
	block int

	// busy is held while the fields below are used, also during the round trip
	// for a new block: whoever needs one meanwhile waits for it, but no longer
	// than its context allows.
	busy chan struct{}
	left []int64
	read time.Time // the database's time when it was last asked
	at   time.Time // when its answer was here, by the monotonic clock
	now  func() time.Time
}

func newNumbers(db *pgxpool.Pool, block int) *numbers {
	return &numbers{db: db, block: block, busy: make(chan struct{}, 1), now: time.Now}
}

// A block is a set of numbers rather than a range, because another process may
// draw from the sequence at the same moment.
const blockSQL = `
select clock_timestamp(), array(select nextval('order_numbers') from generate_series(1, $1::int))`

// take returns a number that no other order has and the database's time.
func (n *numbers) take(ctx context.Context) (number int64, now time.Time, err error) {
	select {
	case n.busy <- struct{}{}:
		defer func() { <-n.busy }()
	case <-ctx.Done():
		return 0, time.Time{}, fmt.Errorf("wait for an order number: %w", ctx.Err())
	}
	if len(n.left) == 0 || n.now().Sub(n.at) >= clockTrust {
		if err := n.ask(ctx); err != nil {
			return 0, time.Time{}, fmt.Errorf("take order numbers: %w", err)
		}
	}
	number, n.left = n.left[0], n.left[1:]
	return number, n.read.Add(n.now().Sub(n.at)), nil
}

// ask reads the database's clock, and a new block of numbers if none is left.
func (n *numbers) ask(ctx context.Context) error {
	want := n.block
	if len(n.left) > 0 {
		want = 0
	}
	var read time.Time
	var block []int64
	if err := n.db.QueryRow(ctx, blockSQL, want).Scan(&read, &block); err != nil {
		return err
	}
	// Counted from the answer and not from the question: the service's time may
	// be late by a round trip but is never ahead of the database's, in which the
	// event is stored a moment later.
	n.read, n.at = read, n.now()
	n.left = append(n.left, block...)
	return nil
}
