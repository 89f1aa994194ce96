package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"example.com/baton/internal/servers"
)

type upOptions struct {
	name                     string
	local, docker            bool
	orderAddr, inventoryAddr string
}

func upCommand() *cobra.Command {
	var opts upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start everything, place one order, show its way, and stay until Ctrl-C",
		Long: `Start PostgreSQL, RabbitMQ and both services, place one order, show its
timeline, and stay in the foreground. Ctrl-C stops all of it; the next "up"
goes on with the same data.

Everything runs in Docker where an engine with Compose answers. Elsewhere, or
with --local, PostgreSQL and RabbitMQ run as private processes of this machine,
on free ports and with data in .baton, and are installed first if need be.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return up(cmd.Context(), progress(cmd), cmd.OutOrStdout(), opts)
		},
	}
	cmd.Flags().BoolVar(&opts.local, "local", false, "run processes of this machine")
	cmd.Flags().BoolVar(&opts.docker, "docker", false, "run docker-compose.yml")
	cmd.Flags().StringVar(&opts.orderAddr, "order-addr", "127.0.0.1:8080", "where the order service listens")
	cmd.Flags().StringVar(&opts.inventoryAddr, "inventory-addr", "127.0.0.1:8081", "where the inventory service listens")
	nameFlag(cmd, &opts.name)
	cmd.MarkFlagsMutuallyExclusive("local", "docker")
	return cmd
}

func up(ctx context.Context, say func(string), out io.Writer, opts upOptions) (err error) {
	clone, err := servers.ClonePath(".")
	if err != nil {
		return err
	}
	home, err := openData(clone, opts.name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, home.Close()) }()
	if err := free(opts.orderAddr, "--order-addr"); err != nil {
		return err
	}
	if err := free(opts.inventoryAddr, "--inventory-addr"); err != nil {
		return err
	}
	if opts.docker || !opts.local && composeAnswers(ctx) {
		err = upDocker(ctx, say, out, opts)
	} else {
		err = upLocal(ctx, say, out, clone, home, opts)
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		say("stopped")
		return nil // asked for, whatever it interrupted
	}
	return err
}

func nameFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "name", "data", "folder in .baton for data and logs, to have several Batons in one clone")
}

func openData(clone, name string) (*servers.Home, error) {
	if !regexp.MustCompile(`^[a-z0-9]+$`).MatchString(name) || name == "bin" {
		return nil, fmt.Errorf("--name %q: want lower-case letters and digits, and not \"bin\"", name)
	}
	home, err := servers.OpenHome(clone, name)
	if errors.Is(err, servers.ErrBusy) {
		return nil, fmt.Errorf("\"baton up\" runs already in %s; stop it there with Ctrl-C", clone)
	}
	return home, err
}

// free finds out early, and in words, what a service would find out late.
func free(addr, flag string) error {
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is taken by another program; choose another address with %s, such as %s 127.0.0.1:18080", addr, flag, flag)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return l.Close()
}

func upLocal(ctx context.Context, say func(string), out io.Writer, clone string, home *servers.Home, opts upOptions) (err error) {
	if err := servers.Install(ctx, say, servers.PostgresPackage, servers.RabbitPackage); err != nil {
		return err
	}
	cfg := servers.Config{Kind: servers.Local, Home: home, Progress: say}
	pair, err := servers.NewPair(cfg)
	if err != nil {
		return err
	}
	bin := filepath.Join(clone, ".baton", "bin")
	g, startCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return pair.Start(startCtx) })
	g.Go(func() error { return build(startCtx, say, bin) })
	err = g.Wait()
	defer func() { err = errors.Join(err, stop(ctx, say, "PostgreSQL and RabbitMQ", pair.Stop)) }()
	if err != nil {
		return err
	}

	results, err := deployment{
		databaseURL:   pair.Postgres.URL("postgres"),
		managementURL: pair.Broker.ManagementURL(),
		vhost:         "/",
		password:      home.Secret,
	}.set(ctx)
	if err != nil {
		return err
	}
	for _, m := range results {
		say(m.String())
	}

	urls := make(map[string]string, len(services))
	for _, s := range services {
		password, err := home.Secret(s.env(databasePassword))
		if err != nil {
			return err
		}
		urls[s.name] = pair.Postgres.URLFor(s.name+"_service", password, s.database)
	}
	forget, err := writeConnections(opts.name, urls)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, forget()) }()

	order, err := program(cfg, pair, services[0], bin, opts.orderAddr)
	if err != nil {
		return err
	}
	inventory, err := program(cfg, pair, services[1], bin, opts.inventoryAddr)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, stop(ctx, say, "the services", func(ctx context.Context) error {
			var g errgroup.Group
			g.Go(func() error { return order.Stop(ctx) })
			g.Go(func() error { return inventory.Stop(ctx) })
			return g.Wait()
		}))
	}()
	g, startCtx = errgroup.WithContext(ctx)
	g.Go(func() error { return order.Start(startCtx) })
	g.Go(func() error { return inventory.Start(startCtx) })
	if err := g.Wait(); err != nil {
		return err
	}

	// From here on what dies is started again, and it is not started while it
	// is being stopped: that is why the guards end before this function does.
	guardCtx, cancel := context.WithCancel(ctx)
	var guards sync.WaitGroup
	defer func() { cancel(); guards.Wait() }()
	for _, s := range []*servers.Server{&pair.Postgres.Server, &pair.Broker.Server, order, inventory} {
		guards.Go(func() { guard(guardCtx, say, s) })
	}

	w := walk{order: "http://" + opts.orderAddr, inventory: "http://" + opts.inventoryAddr, out: out}
	if err := w.placeOne(ctx); err != nil {
		return err
	}
	w.whatNow(
		"RabbitMQ   http://"+pair.Broker.ManagementAddr()+"  management page, user baton",
		"PostgreSQL "+pair.Postgres.Addr()+"  databases orders and inventory, user postgres",
		"passwords  .baton/"+opts.name+"/secrets.json",
		"logs       .baton/"+opts.name+"/*.log",
	)
	<-ctx.Done()
	return nil
}

// build makes the services' programs.
func build(ctx context.Context, say func(string), bin string) error {
	begin := time.Now()
	say("building the services")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin+"/", "./cmd/order", "./cmd/inventory")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if out, err := cmd.CombinedOutput(); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return fmt.Errorf("build the services: %w\n%s", err, out)
	}
	say(fmt.Sprintf("the services are built after %.1f s", time.Since(begin).Seconds()))
	return nil
}

// program is a service as a process of this machine, with the environment that
// it has in compose too.
func program(cfg servers.Config, pair *servers.Pair, s service, bin, addr string) (*servers.Server, error) {
	var passwords [3]string
	for i, name := range []string{s.env(databasePassword), s.env(amqpPassword), auditPassword} {
		var err error
		if passwords[i], err = cfg.Home.Secret(name); err != nil {
			return nil, err
		}
	}
	env := []string{
		s.env("_HTTP=") + addr,
		s.env("_DATABASE_URL=") + pair.Postgres.URLFor(s.name+"_service", passwords[0], s.database),
		s.env("_AMQP_URL=") + pair.Broker.AMQPURL(s.name, passwords[1], "/"),
		"BATON_MANAGEMENT_URL=" + pair.Broker.ManagementURLFor("audit", passwords[2]),
	}
	return servers.NewProgram(cfg, s.name, filepath.Join(bin, s.name), env, func(ctx context.Context) error {
		return ready(ctx, "http://"+addr)
	}), nil
}

func ready(ctx context.Context, base string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // only to say more
		return fmt.Errorf("%s/readyz: %s %s", base, resp.Status, body)
	}
	return nil
}

// guard starts s again each time it ends by itself, until ctx is done, and says
// so. The pauses grow while that does not help.
func guard(ctx context.Context, say func(string), s *servers.Server) {
	const shortest, longest = time.Second, 30 * time.Second
	wait := shortest
	for lastStart := time.Now(); ; lastStart = time.Now() {
		var err error
		select {
		case <-ctx.Done():
			return
		case err = <-s.Exited():
		}
		if time.Since(lastStart) > time.Minute {
			wait = shortest
		}
		for err != nil {
			say(err.Error())
			say(fmt.Sprintf("%s starts again in %s", s.Title(), wait))
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, longest)
			if err = s.Start(ctx); ctx.Err() != nil {
				return
			}
		}
	}
}

// stop ends something although ctx may be done.
func stop(ctx context.Context, say func(string), what string, f func(context.Context) error) error {
	say("stopping " + what)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return f(ctx)
}
