package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/stack"
	"example.com/baton/internal/steps"
	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// idle measures from the answer of one order at a time until its event is with a
// consumer of the broker.
func (r *run) idle(ctx context.Context) error {
	n, pause := 400, 20*time.Millisecond
	if r.Quick {
		n = 200
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	if err := r.start(ctx, r.stack.Processes()[0], r.stack.Inventories[0]); err != nil {
		return err
	}
	tap, err := r.tap(ctx)
	if err != nil {
		return err
	}
	defer tap.close()
	var took []time.Duration
	for range n {
		orders, err := atRate(ctx, r.stack.Orders[0].URL(), 1000, time.Millisecond, r.prefix())
		if err != nil {
			return err
		}
		arrived, err := tap.when(ctx, orders[0].eventID)
		if err != nil {
			return err
		}
		took = append(took, arrived.Sub(orders[0].answered))
		time.Sleep(pause) // idle is the point
	}
	r.rep.Latencies = append(r.rep.Latencies, latency(arrivalWhat, took))
	return nil
}

const (
	arrivalWhat  = "idle: 201 until the message is with a consumer"
	postWhat     = "POST until 201"
	publishWhat  = "POST until the event is published"
	reservedWhat = "POST until the reservation is committed"
)

// loadRate is how many orders a second are placed while latencies are measured.
const loadRate = 200

// underLoad measures from when a request was due until its answer, and until its
// reservation is committed.
func (r *run) underLoad(ctx context.Context) error {
	for range r.Pairs {
		if err := r.loaded(ctx); err != nil {
			return err
		}
		if err := r.stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

// loaded measures one pair.
func (r *run) loaded(ctx context.Context) error {
	lasting := 15 * time.Second
	if r.Quick {
		lasting = 8 * time.Second
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	order, inventory := r.stack.Orders[0], r.stack.Inventories[0]
	if err := r.start(ctx, order, inventory); err != nil {
		return err
	}
	// Connections, plans and caches as in a service that has been up for a while.
	if _, err := atRate(ctx, order.URL(), loadRate, time.Second, r.prefix()); err != nil {
		return err
	}
	published, err := watch(ctx, order, outbox.StepConfirmed)
	if err != nil {
		return err
	}
	defer published.close()
	committed, err := watch(ctx, inventory, rabbit.StepCommitted)
	if err != nil {
		return err
	}
	defer committed.close()
	orders, err := atRate(ctx, order.URL(), loadRate, lasting, r.prefix())
	if err != nil {
		return err
	}
	var toAnswer, toPublished, toReserved []time.Duration
	for _, o := range orders {
		confirmed, err := published.when(ctx, o.eventID)
		if err != nil {
			return err
		}
		reserved, err := committed.when(ctx, o.eventID)
		if err != nil {
			return err
		}
		toAnswer = append(toAnswer, o.answered.Sub(o.due))
		toPublished = append(toPublished, confirmed.Sub(o.due))
		toReserved = append(toReserved, reserved.Sub(o.due))
	}
	answer, reserved := latency(postWhat, toAnswer), latency(reservedWhat, toReserved)
	r.rep.Latencies = append(r.rep.Latencies, answer, latency(publishWhat, toPublished), reserved)
	r.note("L2", Pair{answer.P50, reserved.P50})
	r.note("L2.99", Pair{answer.P99, reserved.P99})
	for _, p := range []*stack.Process{order, inventory} {
		found, err := p.Metrics(ctx)
		if err != nil {
			return err
		}
		r.rep.Memory = append(r.rep.Memory, Figure{p.Service.Name, found["process_resident_memory_bytes"] / (1 << 20)})
	}
	return nil
}

// latency are percentiles of times.
func latency(what string, took []time.Duration) Latency {
	slices.Sort(took)
	at := func(q float64) float64 { return took[int(q*float64(len(took)-1))].Seconds() * 1000 }
	return Latency{What: what, N: len(took), P50: at(0.5), P95: at(0.95), P99: at(0.99)}
}

// moments are when things happened to events, by id, as they come in.
type moments struct {
	mu      sync.Mutex
	at      map[string]time.Time
	changed chan struct{} // closed and renewed at each change
	err     error         // why there will be no more
	stop    func()
	ended   chan struct{}
}

func newMoments(stop func()) *moments {
	return &moments{at: map[string]time.Time{}, changed: make(chan struct{}), stop: stop, ended: make(chan struct{})}
}

func (m *moments) note(id string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, twice := m.at[id]; !twice {
		m.at[id] = at
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *moments) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	close(m.changed)
	close(m.ended)
}

// close ends the watching.
func (m *moments) close() {
	m.stop()
	<-m.ended
}

// when waits for the moment of an event.
func (m *moments) when(ctx context.Context, id string) (time.Time, error) {
	patience := time.NewTimer(stuck)
	defer patience.Stop()
	for {
		m.mu.Lock()
		at, ok := m.at[id]
		changed, err := m.changed, m.err
		m.mu.Unlock()
		switch {
		case ok:
			return at, nil
		case err != nil:
			return at, err
		}
		select {
		case <-changed:
		case <-patience.C:
			return at, fmt.Errorf("nothing was heard of event %s", id)
		case <-ctx.Done():
			return at, ctx.Err()
		}
	}
}

// tap is a queue beside inventory's, and when each event arrives from it.
func (r *run) tap(ctx context.Context) (*moments, error) {
	conn, err := amqp.Dial(r.amqpURL)
	if err != nil {
		return nil, err
	}
	m := newMoments(func() { conn.Close() })
	deliveries, err := func() (<-chan amqp.Delivery, error) {
		ch, err := conn.Channel()
		if err != nil {
			return nil, err
		}
		q, err := ch.QueueDeclare("", false, true, true, false, nil)
		if err != nil {
			return nil, err
		}
		if err := ch.QueueBind(q.Name, events.OrderCreated, events.OrderExchange, false, nil); err != nil {
			return nil, err
		}
		return ch.ConsumeWithContext(ctx, q.Name, "", true, true, false, false, nil)
	}()
	if err != nil {
		conn.Close()
		return nil, err
	}
	go func() { // close waits for it
		for d := range deliveries {
			m.note(d.MessageId, time.Now())
		}
		m.end(errors.New("the tap's deliveries have ended"))
	}()
	return m, nil
}

// watch notes when events take a step of a process, by its stream of steps. Its
// clock is ours: it runs on this machine.
func watch(ctx context.Context, p *stack.Process, step string) (*moments, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+"/steps", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	m := newMoments(cancel)
	go func() { // close waits for it
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
			if !ok || !bytes.Contains(data, []byte(step)) {
				continue
			}
			var s steps.Step
			if err := json.Unmarshal(data, &s); err != nil {
				m.end(err)
				return
			}
			m.note(s.ID, s.At)
		}
		m.end(errors.Join(fmt.Errorf("the steps of %s have ended", p.Name), lines.Err()))
	}()
	return m, nil
}
