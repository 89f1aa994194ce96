package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/provision"
	"example.com/baton/internal/proxy"
	"example.com/baton/internal/servers"
	"example.com/baton/internal/stack"
)

// carryOut waits for the step's time, does what it says, mends it and has the
// recovery measured in the background.
func (r *run) carryOut(ctx, background context.Context, s Step) {
	pause(ctx, time.Until(r.begin.Add(s.At)))
	if ctx.Err() != nil {
		return
	}
	r.say("%s", s)
	over, err := r.do(ctx, s)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errNotReached):
		r.say("%8s  %-20s  was not reached within %s", "", s.Kind, stepPatience)
	case err != nil:
		r.problem("%s of %s: %v", s.Kind, s.Target, err)
	default:
		r.mu.Lock()
		r.faults[s.Kind]++
		r.mu.Unlock()
		r.watching.Go(func() { r.measure(background, s.Kind, over) })
	}
}

// errNotReached says that an armed fault did not happen. It is disarmed.
var errNotReached = errors.New("the step was not reached")

// do does what a step says and returns when it is over: mended, if there is
// anything to mend, and else the moment that it happened.
func (r *run) do(ctx context.Context, s Step) (over time.Time, err error) {
	switch s.Kind {
	case Kill, KillAtStep, Stop, StopAtStep, Clock:
		return r.toProcess(ctx, s)
	case FreezeToBroker, FreezeFromBroker, FreezeToDatabase, FreezeFromDatabase, CutBroker, CutDatabase:
		r.toNetwork(ctx, s)
		return time.Now(), nil
	case DeleteBinding, DeleteExchange:
		return r.toTopology(ctx, s)
	}
	err = r.toServer(ctx, s)
	return time.Now(), err
}

func (r *run) process(name string) *stack.Process {
	for _, p := range r.stack.Processes() {
		if p.Name == name {
			return p
		}
	}
	panic("no process " + name) // the plan knows them all
}

func (r *run) toProcess(ctx context.Context, s Step) (over time.Time, err error) {
	p := r.process(s.Target)
	// It may be on its way back from the fault before.
	alive, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	if err := until(alive, func() error { _, err := p.Do(ctx, http.MethodGet, "/livez", nil); return err }); err != nil {
		return over, err
	}
	switch s.Kind {
	case Kill:
		return time.Now(), p.Crash(ctx)
	case KillAtStep:
		err := r.armed(ctx, p, faults.Fault{Step: s.Point, Action: faults.Crash, After: s.After})
		return time.Now(), err
	case Stop:
		if err := p.Freeze(ctx); err != nil {
			return over, err
		}
	case StopAtStep:
		if err := r.armed(ctx, p, faults.Fault{Step: s.Point, Action: faults.Stop, After: s.After}); err != nil {
			return over, err
		}
	case Clock:
		if _, err := p.Arm(ctx, faults.Fault{Action: faults.Clock, Offset: faults.Duration(s.Offset)}); err != nil {
			return over, err
		}
		pause(ctx, s.Lasts)
		return time.Now(), p.Disarm(ctx)
	}
	pause(ctx, s.Lasts)
	return time.Now(), p.Thaw(ctx)
}

// armed arms a fault and waits until it has happened.
func (r *run) armed(ctx context.Context, p *stack.Process, f faults.Fault) error {
	fault, err := p.Arm(ctx, f)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, stepPatience)
	defer cancel()
	happened := func() error {
		if ok, err := fault.Happened(); err != nil || ok {
			return err
		}
		return errNotReached
	}
	if err := until(waiting, happened); err == nil {
		return nil
	}
	// Not now means never: but it may just have happened, and then there is nobody
	// to disarm it.
	_ = p.Disarm(ctx)
	return happened()
}

func (r *run) toNetwork(ctx context.Context, s Step) {
	l := r.links[s.Target]
	freeze := func(p *proxy.Proxy, d proxy.Direction) {
		p.Freeze(d)
		pause(ctx, s.Lasts)
		p.Thaw(d)
	}
	switch s.Kind {
	case FreezeToBroker:
		freeze(l.broker, proxy.ToServer)
	case FreezeFromBroker:
		freeze(l.broker, proxy.ToClient)
	case FreezeToDatabase:
		freeze(l.database, proxy.ToServer)
	case FreezeFromDatabase:
		freeze(l.database, proxy.ToClient)
	case CutBroker:
		l.broker.Cut()
	case CutDatabase:
		l.database.Cut()
	}
}

func (r *run) toServer(ctx context.Context, s Step) error {
	node := r.stack.Broker
	switch s.Kind {
	case BrokerRestart:
		return node.Restart(ctx)
	case BrokerKill:
		if err := node.Kill(); err != nil {
			return err
		}
		pause(ctx, s.Lasts)
		return node.Start(ctx)
	case CloseConnections:
		_, err := node.Ctl(ctx, "close_all_connections", "-p", "/", "chaos")
		return err
	case MemoryAlarm:
		if err := r.watermark(ctx, "0.0000001"); err != nil {
			return err
		}
		pause(ctx, s.Lasts)
		return r.watermark(ctx, "0.4")
	case PostgresFast:
		return r.stack.Postgres.Restart(ctx, servers.Fast)
	case PostgresImmediate:
		return r.stack.Postgres.Restart(ctx, servers.Immediate)
	}
	panic("no such kind: " + s.Kind)
}

// watermark is the share of the memory from which on the broker takes no
// messages.
func (r *run) watermark(ctx context.Context, share string) error {
	_, err := r.stack.Broker.Ctl(ctx, "set_vm_memory_high_watermark", share)
	return err
}

// toTopology deletes something and waits until the services have made it again.
// Nobody else does: over is when it was deleted, so the recovery has that in it.
func (r *run) toTopology(ctx context.Context, s Step) (over time.Time, err error) {
	path := provision.Path("exchanges", "/", s.Target)
	if s.Kind == DeleteBinding {
		b := strings.Fields(s.Target)
		path = provision.Path("bindings", "/", "e", b[0], "q", b[1], b[2])
	}
	if err := r.management.Do(ctx, http.MethodDelete, path, nil, nil); err != nil {
		return over, err
	}
	over = time.Now()
	healing, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	if err := until(healing, func() error { return r.allBound(ctx) }); err != nil {
		return over, fmt.Errorf("the services have not made it again within %s: %w", healPatience, err)
	}
	return over, nil
}

// allBound is nil if every binding is there.
func (r *run) allBound(ctx context.Context) error {
	found, err := r.listBindings(ctx)
	if err != nil {
		return err
	}
	for b := range r.bindings {
		if !found[b] {
			return fmt.Errorf("no binding %s", b)
		}
	}
	return nil
}

func (r *run) listBindings(ctx context.Context) (map[binding]bool, error) {
	var list []struct {
		Source, Destination string
		RoutingKey          string `json:"routing_key"`
	}
	if err := r.management.Do(ctx, http.MethodGet, provision.Path("bindings", "/"), nil, &list); err != nil {
		return nil, err
	}
	found := make(map[binding]bool, len(list))
	for _, b := range list {
		found[binding{b.Source, b.Destination, b.RoutingKey}] = true
	}
	return found, nil
}

// mend undoes whatever a step may have left.
func (r *run) mend(ctx context.Context) {
	for _, server := range []*servers.Server{&r.stack.Postgres.Server, &r.stack.Broker.Server} {
		if err := server.Start(ctx); err != nil {
			r.problem("%v", err)
		}
	}
	if err := r.watermark(ctx, "0.4"); err != nil {
		r.problem("%v", err)
	}
	for _, p := range r.stack.Processes() {
		r.links[p.Name].broker.Thaw(proxy.ToServer | proxy.ToClient)
		r.links[p.Name].database.Thaw(proxy.ToServer | proxy.ToClient)
		if err := p.Thaw(ctx); err != nil {
			r.problem("%v", err)
		}
		mending, cancel := context.WithTimeout(ctx, healPatience)
		if err := until(mending, func() error { return p.Disarm(ctx) }); err != nil {
			r.problem("disarm %s: %v", p.Name, err)
		}
		cancel()
	}
	if err := r.allBound(ctx); err != nil {
		r.problem("%v", err)
	}
}
