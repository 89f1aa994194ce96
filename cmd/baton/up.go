package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"example.com/baton/internal/servers"
	"example.com/baton/internal/stack"
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

// nameFlag is what a command needs to mean this Baton and no other.
func (o upOptions) nameFlag() string {
	if o.name == defaultName {
		return ""
	}
	return " --name " + o.name
}

// defaultName is the folder in .baton if nobody chooses one.
const defaultName = "data"

func nameFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "name", defaultName, "folder in .baton for data and logs, to have several Batons in one clone")
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
	s, err := stack.New(stack.Config{
		Home: home, Bin: filepath.Join(clone, ".baton", "bin"),
		OrderAddr: opts.orderAddr, InventoryAddr: opts.inventoryAddr, Progress: say,
	})
	if err != nil {
		return err
	}
	if err := s.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop(ctx)) }()

	const vhost = "/"
	running := connections{Management: s.Broker.ManagementURL(), AMQP: s.Broker.AdminURL(vhost), Vhost: vhost}
	if running.Order, err = s.ServiceURL(stack.Order); err != nil {
		return err
	}
	if running.Inventory, err = s.ServiceURL(stack.Inventory); err != nil {
		return err
	}
	forget, err := writeConnections(opts.name, running)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, forget()) }()

	keepCtx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	defer func() { cancel(); keeping.Wait() }()
	keeping.Go(func() { s.Keep(keepCtx, 0, s.Servers()...) })

	w := walk{order: s.Orders[0].URL(), inventory: s.Inventories[0].URL(), out: out}
	if err := w.placeOne(ctx); err != nil {
		return err
	}
	w.whatNow("./baton check"+opts.nameFlag(), opts.nameFlag(),
		"RabbitMQ   http://"+s.Broker.ManagementAddr()+"  management page, user baton",
		"PostgreSQL "+s.Postgres.Addr()+"  databases orders and inventory, user postgres",
		"passwords  .baton/"+opts.name+"/secrets.json",
		"logs       .baton/"+opts.name+"/*.log",
	)
	<-ctx.Done()
	return nil
}
