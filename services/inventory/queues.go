package inventory

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"example.com/baton/shared/rabbit"
)

// queues are the queues that share the orders' events, each with a consumer.
type queues struct {
	queue    rabbit.Queue // what they share
	number   int
	url      string // of the broker
	consumer func(rabbit.Queue) *rabbit.Consumer

	mu        sync.Mutex
	consumers []*rabbit.Consumer // of these queues, and then of those that are left from a larger number
}

func (q *queues) add(queue rabbit.Queue) *rabbit.Consumer {
	c := q.consumer(queue)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.consumers = append(q.consumers, c)
	return c
}

func (q *queues) all() []*rabbit.Consumer {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.consumers)
}

// consume reads the queues until ctx is done. Those that a larger number has left
// are read too, so that nothing strands in them when the number was changed; they
// are looked for once, because it cannot change while the process runs.
func (q *queues) consume(ctx context.Context) error {
	var g errgroup.Group
	for _, c := range q.all() {
		g.Go(func() error { return c.Run(ctx) })
	}
	for n := q.number + 1; ; n++ {
		leftover := q.queue.Leftover(n)
		if !leftover.Exists(ctx, q.url) {
			return g.Wait()
		}
		c := q.add(leftover)
		g.Go(func() error { return c.Run(ctx) })
	}
}

// state is that of the first consumer that does not consume, else of the first
// that has a problem. What is left from another number does not count.
func (q *queues) state() rabbit.State {
	worst := rabbit.State{Connected: true}
	for _, c := range q.all()[:q.number] {
		switch state := c.State(); {
		case !state.Connected:
			return state
		case worst.Problem == "":
			worst = state
		}
	}
	return worst
}

// sum adds up one of the consumers' counts.
func (q *queues) sum(of func(*rabbit.ConsumerCounts) int64) func() int64 {
	return func() (sum int64) {
		for _, c := range q.all() {
			sum += of(c.Counts())
		}
		return sum
	}
}
