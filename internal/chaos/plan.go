package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// Kind is a kind of fault.
type Kind string

// The kinds.
const (
	KillAtStep Kind = "kill-at-step" // SIGKILL at a named step
	Kill       Kind = "kill"         // SIGKILL wherever the process is
	StopAtStep Kind = "stop-at-step" // SIGSTOP at a named step, past the lease
	Stop       Kind = "stop"         // SIGSTOP wherever it is, past the lease
	Clock      Kind = "clock"        // the process's clock is wrong by minutes or days

	FreezeToBroker     Kind = "freeze-to-broker"   // what the process says to the broker is held back
	FreezeFromBroker   Kind = "freeze-from-broker" // what it would hear
	FreezeToDatabase   Kind = "freeze-to-database"
	FreezeFromDatabase Kind = "freeze-from-database"
	CutBroker          Kind = "cut-broker" // the process's connections are cut
	CutDatabase        Kind = "cut-database"

	BrokerRestart     Kind = "broker-restart"     // the node, in order
	BrokerKill        Kind = "broker-kill"        // the node, by SIGKILL
	CloseConnections  Kind = "close-connections"  // all of them, by the broker
	MemoryAlarm       Kind = "memory-alarm"       // the broker takes no messages
	PostgresFast      Kind = "postgres-fast"      // restart, transactions rolled back
	PostgresImmediate Kind = "postgres-immediate" // restart, as after a crash
	DeleteBinding     Kind = "delete-binding"
	DeleteExchange    Kind = "delete-exchange"
)

// tracks are kinds that happen one after the other, some more often than others.
// Tracks run side by side, so that a process may die while the broker restarts.
var tracks = [][]Kind{
	{KillAtStep, KillAtStep, KillAtStep, Kill, StopAtStep, StopAtStep, Stop, Clock},
	{FreezeToBroker, FreezeFromBroker, FreezeToDatabase, FreezeFromDatabase, CutBroker, CutDatabase},
	{BrokerRestart, BrokerKill, CloseConnections, MemoryAlarm, PostgresFast, PostgresImmediate, DeleteBinding, DeleteExchange},
}

// Kinds are all of them.
func Kinds() []Kind { return slices.Compact(slices.Concat(tracks...)) }

// Lease is that of the relays in a run, short so that the time for which a
// process is stopped can be longer.
const Lease = 3 * time.Second

// Step is a fault that is to happen.
type Step struct {
	At     time.Duration `json:"at"` // after the load has begun; later if the one before takes long
	Kind   Kind          `json:"kind"`
	Target string        `json:"target"`           // process, server, exchange, or "exchange queue key"
	Point  string        `json:"point,omitempty"`  // the named step
	After  int           `json:"after,omitempty"`  // how often the named step passes unharmed before
	Lasts  time.Duration `json:"lasts,omitempty"`  // until it is mended; 0 if there is nothing to wait for
	Offset time.Duration `json:"offset,omitempty"` // of the clock

	track int
}

func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6.1f s  %-20s  %s", s.At.Seconds(), s.Kind, s.Target)
	if s.Point != "" {
		fmt.Fprintf(&b, " at %s number %d", s.Point, s.After+1)
	}
	if s.Offset != 0 {
		fmt.Fprintf(&b, " off by %s", s.Offset)
	}
	if s.Lasts != 0 {
		fmt.Fprintf(&b, " for %.1f s", s.Lasts.Seconds())
	}
	return b.String()
}

// The targets.
const (
	processes = 2 // of each service
	broker    = "RabbitMQ"
	database  = "PostgreSQL"
)

// points are the steps that every order passes, by service. Those of retries and
// dead letters are not among them: an outage leads to neither.
var points = map[string][]string{
	"order": {
		"order.committed", // order.StepCommitted, which is not for us to import
		outbox.StepClaimed, outbox.StepSent, outbox.StepConfirmed, outbox.StepSettled,
		rabbit.StepReceived, rabbit.StepCommitted, rabbit.StepAcked,
	},
	"inventory": {
		rabbit.StepReceived, rabbit.StepCommitted, rabbit.StepAcked,
		outbox.StepClaimed, outbox.StepSent, outbox.StepConfirmed, outbox.StepSettled,
	},
}

var bindings = []binding{
	{events.OrderExchange, "inventory.order-events", events.OrderCreated},
	{events.OrderExchange, "inventory.order-events", events.OrderCancelled},
	{events.InventoryExchange, "order.inventory-events", events.InventoryReserved},
	{events.InventoryExchange, "order.inventory-events", events.InventoryRejected},
}

// calm is how long nothing happens at first, so that what was just made is on
// disks: a node that is killed may forget a queue that is a second old.
const calm = 3 * time.Second

// longestRound is how long all kinds take once. A longer run has several rounds.
const longestRound = 90 * time.Second

// Plan is what is to happen in a run of the given length: the same for the same
// seed. Each kind happens at least once. In less than a minute or so that is
// more than fits, and the run takes longer.
func Plan(seed uint64, duration time.Duration) []Step {
	p := planner{
		rand: rand.New(rand.NewPCG(seed, 0)),
		// A short run has short faults.
		scale: min(1, max(0.3, duration.Seconds()/longestRound.Seconds())),
	}
	var plan []Step
	round := (min(duration, longestRound) - calm) * 9 / 10
	for track, kinds := range tracks {
		at := calm
		for first := true; ; first = false {
			steps := p.round(kinds)
			var busy time.Duration
			for _, s := range steps {
				busy += s.takes()
			}
			pause := max(0, round-busy) / time.Duration(len(steps))
			for _, s := range steps {
				at += p.between(pause/2, pause*3/2) / 2
				s.At, s.track = at.Round(100*time.Millisecond), track
				if first || at+s.takes() < duration {
					plan = append(plan, s)
				}
				at += s.takes() + pause/2
			}
			if at >= duration {
				break
			}
		}
	}
	slices.SortStableFunc(plan, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return plan
}

// takes is about how long a fault takes until it is mended.
func (s Step) takes() time.Duration {
	switch s.Kind {
	case BrokerRestart, BrokerKill:
		return s.Lasts + 8*time.Second
	case PostgresFast, PostgresImmediate, MemoryAlarm, CloseConnections:
		return s.Lasts + 2*time.Second
	}
	return s.Lasts + time.Second
}

type planner struct {
	rand  *rand.Rand
	scale float64
	// What has not been chosen yet, so that everything has its turn.
	points   []point
	bindings []binding
}

type point struct{ service, step string }

type binding struct{ exchange, queue, key string }

func (b binding) String() string { return b.exchange + " " + b.queue + " " + b.key }

// round is each kind once.
func (p *planner) round(kinds []Kind) []Step {
	steps := make([]Step, len(kinds))
	for i, j := range p.rand.Perm(len(kinds)) {
		steps[i] = p.step(kinds[j])
	}
	return steps
}

func (p *planner) step(kind Kind) Step {
	s := Step{Kind: kind, Target: p.process([]string{"order", "inventory"}[p.rand.IntN(2)])}
	switch kind {
	case KillAtStep:
		s.Target, s.Point, s.After = p.point()
	case StopAtStep:
		s.Target, s.Point, s.After = p.point()
		s.Lasts = Lease + p.scaled(time.Second, 5*time.Second)
	case Stop:
		s.Lasts = Lease + p.scaled(time.Second, 5*time.Second)
	case Clock:
		s.Lasts = p.scaled(5*time.Second, 15*time.Second)
		s.Offset = []time.Duration{-48 * time.Hour, -10 * time.Minute, 10 * time.Minute, 48 * time.Hour}[p.rand.IntN(4)]
	case FreezeToBroker, FreezeFromBroker, FreezeToDatabase, FreezeFromDatabase:
		s.Lasts = p.scaled(6*time.Second, 20*time.Second) // a broker is given up after 15 s of silence
	case BrokerRestart, CloseConnections:
		s.Target = broker
	case BrokerKill:
		s.Target, s.Lasts = broker, p.scaled(0, 5*time.Second)
	case MemoryAlarm:
		s.Target, s.Lasts = broker, p.scaled(4*time.Second, 10*time.Second)
	case PostgresFast, PostgresImmediate:
		s.Target = database
	case DeleteBinding:
		s.Target = p.binding().String()
	case DeleteExchange:
		s.Target = []string{events.OrderExchange, events.InventoryExchange}[p.rand.IntN(2)]
	}
	return s
}

func (p *planner) process(service string) string {
	return fmt.Sprintf("%s-%d", service, p.rand.IntN(processes)+1)
}

func (p *planner) point() (target, step string, after int) {
	if len(p.points) == 0 {
		for _, service := range []string{"order", "inventory"} {
			for _, step := range points[service] {
				p.points = append(p.points, point{service, step})
			}
		}
		p.rand.Shuffle(len(p.points), func(i, j int) { p.points[i], p.points[j] = p.points[j], p.points[i] })
	}
	next := p.points[0]
	p.points = p.points[1:]
	return p.process(next.service), next.step, p.rand.IntN(10)
}

func (p *planner) binding() binding {
	if len(p.bindings) == 0 {
		p.bindings = slices.Clone(bindings)
		p.rand.Shuffle(len(p.bindings), func(i, j int) { p.bindings[i], p.bindings[j] = p.bindings[j], p.bindings[i] })
	}
	next := p.bindings[0]
	p.bindings = p.bindings[1:]
	return next
}

func (p *planner) between(least, most time.Duration) time.Duration {
	return least + time.Duration(p.rand.Float64()*float64(most-least))
}

func (p *planner) scaled(least, most time.Duration) time.Duration {
	return time.Duration(float64(p.between(least, most)) * p.scale).Round(100 * time.Millisecond)
}
