// Package stack runs the whole of Baton on one machine, as "baton up" does:
// PostgreSQL and RabbitMQ for itself, databases, users and schemas in them, and
// any number of processes of both services.
//
//	s, err := stack.New(stack.Config{Home: home, Orders: 2, Inventories: 2})
//	err = s.Start(ctx)
//	defer s.Stop(ctx)
//	err = s.Orders[0].Freeze(ctx)
package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/baton/internal/servers"
)

// Config says how a stack is to be.
type Config struct {
	// Home keeps data, passwords and logs. Required; it is closed by whoever
	// opened it, after Stop.
	Home *servers.Home
	// Kind is how the servers run. Defaults to local. The services are processes
	// of this machine in any case.
	Kind servers.Kind
	// Orders and Inventories are how many processes of each service there are.
	// Default to 1.
	Orders, Inventories int
	// OrderAddr and InventoryAddr are where the first of each listens. They
	// default to a free port of 127.0.0.1, as all others have.
	OrderAddr, InventoryAddr string
	// Bin is the folder for the programs. Defaults to "bin" in the Home.
	Bin string
	// Build are more flags for go build.
	Build []string
	// Env are more settings, "NAME=value", for every process.
	Env []string
	// Traced is as in [servers.Config].
	Traced bool
	// Progress receives one line for each thing that takes time. It is called by
	// several goroutines at once. Nil is silence.
	Progress func(line string)
}

// Stack is servers and the processes of both services.
type Stack struct {
	*servers.Pair
	Orders, Inventories []*Process

	cfg Config
}

// New prepares a stack; nothing runs before Start. Until then the fields of its
// processes may be changed.
func New(cfg Config) (*Stack, error) {
	cfg.Kind = cmp.Or(cfg.Kind, servers.Local)
	cfg.Orders, cfg.Inventories = cmp.Or(cfg.Orders, 1), cmp.Or(cfg.Inventories, 1)
	cfg.Bin = cmp.Or(cfg.Bin, filepath.Join(cfg.Home.Path(), "bin"))
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	pair, err := servers.NewPair(servers.Config{Kind: cfg.Kind, Home: cfg.Home, Traced: cfg.Traced, Progress: cfg.Progress})
	if err != nil {
		return nil, err
	}
	s := &Stack{Pair: pair, cfg: cfg}
	for _, of := range []struct {
		Service
		processes *[]*Process
		n         int
		addr      string
	}{
		{Order, &s.Orders, cfg.Orders, cfg.OrderAddr},
		{Inventory, &s.Inventories, cfg.Inventories, cfg.InventoryAddr},
	} {
		for i := range of.n {
			p := &Process{
				Name: of.Name, Service: of.Service,
				DatabaseAddr: pair.Postgres.Addr(), BrokerAddr: pair.Broker.Addr(),
			}
			if of.n > 1 {
				p.Name += "-" + strconv.Itoa(i+1)
			}
			if i == 0 {
				p.Addr = of.addr
			}
			if p.Addr == "" {
				port, err := servers.FreePort()
				if err != nil {
					return nil, err
				}
				p.Addr = "127.0.0.1:" + strconv.Itoa(port)
			}
			p.LogFile = filepath.Join(cfg.Home.Path(), p.Name+".log")
			*of.processes = append(*of.processes, p)
		}
	}
	return s, nil
}

// Processes are all of both services.
func (s *Stack) Processes() []*Process { return slices.Concat(s.Orders, s.Inventories) }

// Servers is everything that runs, for [Stack.Keep].
func (s *Stack) Servers() []*servers.Server {
	all := []*servers.Server{&s.Postgres.Server, &s.Broker.Server}
	for _, p := range s.Processes() {
		all = append(all, p.Server)
	}
	return all
}

// Start builds the services, starts the servers, sets them up and starts the
// processes. It returns when all are ready. If it fails it stops again what it
// has started.
func (s *Stack) Start(ctx context.Context) error {
	err := s.start(ctx)
	if err != nil {
		_ = s.Stop(ctx) // the first error is the one to tell
	}
	return err
}

func (s *Stack) start(ctx context.Context) error {
	g, startCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Pair.Start(startCtx) })
	g.Go(func() error { return s.build(startCtx) })
	if err := g.Wait(); err != nil {
		return err
	}
	migrated, err := Deployment{
		DatabaseURL:   s.Postgres.URL("postgres"),
		ManagementURL: s.Broker.ManagementURL(),
		Vhost:         "/",
		Password:      s.cfg.Home.Secret,
	}.Set(ctx)
	if err != nil {
		return err
	}
	for _, m := range migrated {
		s.cfg.Progress(m.String())
	}
	for _, p := range s.Processes() {
		if err := s.prepare(p); err != nil {
			return err
		}
	}
	g, startCtx = errgroup.WithContext(ctx)
	for _, p := range s.Processes() {
		g.Go(func() error { return p.Start(startCtx) })
	}
	return g.Wait()
}

// build makes the services' programs.
func (s *Stack) build(ctx context.Context) error {
	begin := time.Now()
	s.cfg.Progress("building the services")
	args := append([]string{"build", "-o", s.cfg.Bin + string(filepath.Separator)}, s.cfg.Build...)
	for _, service := range Services {
		args = append(args, "example.com/baton/cmd/"+service.Name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is for us
	if out, err := cmd.CombinedOutput(); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return fmt.Errorf("build the services: %w\n%s", err, out)
	}
	s.cfg.Progress(fmt.Sprintf("the services are built after %.1f s", time.Since(begin).Seconds()))
	return nil
}

// prepare makes the program of a process, with the environment that it has in
// compose too.
func (s *Stack) prepare(p *Process) error {
	database, err := s.ServiceURL(p.Service)
	if err != nil {
		return err
	}
	amqp, err := s.cfg.Home.Secret(p.Service.Env(amqpPassword))
	if err != nil {
		return err
	}
	audit, err := s.cfg.Home.Secret(auditPassword)
	if err != nil {
		return err
	}
	// A path that leads through something else names that in place of the server.
	through := func(url, own, other string) string { return strings.Replace(url, "@"+own+"/", "@"+other+"/", 1) }
	env := slices.Concat([]string{
		p.Service.Env("_HTTP=") + p.Addr,
		p.Service.Env("_DATABASE_URL=") + through(database, s.Postgres.Addr(), p.DatabaseAddr),
		p.Service.Env("_AMQP_URL=") + through(s.Broker.AMQPURL(p.Service.Name, amqp, "/"), s.Broker.Addr(), p.BrokerAddr),
		"BATON_MANAGEMENT_URL=" + s.Broker.ManagementURLFor(auditUser, audit),
	}, s.cfg.Env, p.Env)
	cfg := servers.Config{Home: s.cfg.Home, Progress: s.cfg.Progress}
	p.Server = servers.NewProgram(cfg, p.Name, filepath.Join(s.cfg.Bin, p.Service.Name), env, p.ready)
	return nil
}

// ServiceURL is the address of a service's database, as the service. It holds
// the password.
func (s *Stack) ServiceURL(of Service) (string, error) {
	password, err := s.cfg.Home.Secret(of.Env(databasePassword))
	if err != nil {
		return "", err
	}
	return s.Postgres.URLFor(of.role(), password, of.Database), nil
}

// AdminURL is the address of a service's database, as the superuser. It holds
// the password.
func (s *Stack) AdminURL(of Service) string { return s.Postgres.URL(of.Database) }

// Keep starts again what ends by itself, until ctx is done, and says so. The
// pauses before a start grow up to longest while that does not help; 0 is 30
// seconds. It has to have returned before Stop is called.
func (s *Stack) Keep(ctx context.Context, longest time.Duration, what ...*servers.Server) {
	var guards sync.WaitGroup
	for _, server := range what {
		guards.Go(func() { s.guard(ctx, cmp.Or(longest, 30*time.Second), server) })
	}
	guards.Wait()
}

func (s *Stack) guard(ctx context.Context, longest time.Duration, server *servers.Server) {
	shortest := min(time.Second, longest)
	wait := shortest
	for lastStart := time.Now(); ; lastStart = time.Now() {
		var err error
		select {
		case <-ctx.Done():
			return
		case err = <-server.Exited():
		}
		if time.Since(lastStart) > time.Minute {
			wait = shortest
		}
		for err != nil {
			s.cfg.Progress(err.Error())
			s.cfg.Progress(fmt.Sprintf("%s starts again in %s", server.Title(), wait))
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, longest)
			if err = server.Start(ctx); ctx.Err() != nil {
				return
			}
		}
	}
}

// Stop ends everything, although ctx may be done: in order, or by force after 20
// seconds for the processes and as many for the servers. Nothing is left
// running, frozen or not.
func (s *Stack) Stop(ctx context.Context) error {
	within := func(what string, stop func(context.Context) error) error {
		s.cfg.Progress("stopping " + what)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		return stop(ctx)
	}
	err := within("the services", func(ctx context.Context) error {
		var g errgroup.Group
		for _, p := range s.Processes() {
			if p.Server == nil { // not reached by Start
				continue
			}
			g.Go(func() error {
				if err := p.Thaw(ctx); err != nil {
					return err
				}
				return p.Stop(ctx)
			})
		}
		return g.Wait()
	})
	return errors.Join(err, within("PostgreSQL and RabbitMQ", s.Pair.Stop))
}
