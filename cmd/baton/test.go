package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"example.com/baton/internal/servers"
)

func testCommand() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use:   "test [packages] [-- flags of go test]",
		Short: "Run the tests with the race detector, starting the servers they need",
		Long: `Run go vet and go test -race, on all packages by default.

PostgreSQL and RabbitMQ are started for this run and removed after it, apart
from those of "baton up". A run inside "baton servers" uses those instead.`,
		Example: "  baton test ./internal/... -- -run Migrate -v",
		RunE: func(cmd *cobra.Command, args []string) error {
			packages, flags := args, []string(nil)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				packages, flags = args[:dash], args[dash:]
			}
			if len(packages) == 0 {
				packages = []string{"./..."}
			}
			return runTests(cmd.Context(), progress(cmd), kind, packages, flags)
		},
	}
	kindFlag(cmd, &kind)
	return cmd
}

func serversCommand() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use:   "servers",
		Short: "Start servers for tests and keep them, for many runs of go test",
		Long: `Start a PostgreSQL and a RabbitMQ for tests and keep them until Ctrl-C.

Standard output is what to set in the shell that runs go test or baton test.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withServers(cmd.Context(), progress(cmd), kind, func(ctx context.Context, env []string) error {
				for _, e := range env {
					fmt.Fprintf(cmd.OutOrStdout(), "export '%s'\n", e)
				}
				<-ctx.Done()
				return nil
			})
		},
	}
	kindFlag(cmd, &kind)
	return cmd
}

func kindFlag(cmd *cobra.Command, kind *string) {
	cmd.Flags().StringVar(kind, "servers", "", "local or docker (default: local where both are installed, else docker where an engine answers)")
}

func runTests(ctx context.Context, say func(string), kind string, packages, flags []string) error {
	if err := servers.Install(ctx, say, servers.CompilerPackage); err != nil {
		return err
	}
	if err := servers.Install(ctx, say, servers.PoolerPackage); err != nil {
		say("the tests behind a pooler do not run: " + err.Error())
	}
	if os.Getenv(servers.TestServersVar) != "" && kind == "" {
		say("using the servers of $" + servers.TestServersVar)
		return goTest(ctx, say, nil, packages, flags)
	}
	return withServers(ctx, say, kind, func(ctx context.Context, env []string) error {
		return goTest(ctx, say, env, packages, flags)
	})
}

// withServers runs f with a pair of servers that lives no longer than f, and
// the environment that tells tests about it.
func withServers(ctx context.Context, say func(string), kind string, f func(ctx context.Context, env []string) error) (err error) {
	clone, home, k, err := tempHome(ctx, say, kind)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, home.Close())
		servers.Sweep(clone) // what tests that were killed have left
	}()
	pair, err := servers.NewPair(servers.Config{Kind: k, Home: home, Progress: say})
	if err != nil {
		return err
	}
	if err := pair.Start(ctx); err != nil {
		return err
	}
	defer func() {
		say("stopping the servers")
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, pair.Stop(stopCtx))
	}()
	return f(ctx, pair.TestEnv())
}

// tempHome makes a Home that is removed with its Close, for servers of the kind
// that is asked for, whose programs it installs if need be.
func tempHome(ctx context.Context, say func(string), asked string) (clone string, home *servers.Home, kind servers.Kind, err error) {
	if clone, err = servers.ClonePath("."); err != nil {
		return "", nil, "", err
	}
	if kind, err = chooseKind(ctx, asked); err != nil {
		return "", nil, "", err
	}
	if kind == servers.Local {
		if err := servers.Install(ctx, say, servers.PostgresPackage, servers.RabbitPackage); err != nil {
			return "", nil, "", err
		}
	}
	home, err = servers.TempHome(clone)
	return clone, home, kind, err
}

// chooseKind takes what needs nothing installed, if nothing was asked for.
func chooseKind(ctx context.Context, asked string) (servers.Kind, error) {
	switch {
	case asked != "":
		return servers.ParseKind(asked)
	case !servers.Installed() && servers.DockerAnswers(ctx):
		return servers.Docker, nil
	}
	return servers.Local, nil
}

func goTest(ctx context.Context, say func(string), env, packages, flags []string) error {
	say("go vet")
	if err := run(ctx, env, "go", append([]string{"vet"}, packages...)...); err != nil {
		return err
	}
	say("go test -race")
	args := append([]string{"test", "-race", "-timeout", "20m"}, flags...)
	return run(ctx, env, "go", append(args, packages...)...)
}

// run passes the output of a command through, and its exit code. When ctx ends
// it is interrupted with all its children, as by Ctrl-C.
func run(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// A group of its own: a terminal's Ctrl-C reaches us alone, and the servers
	// stop after the tests that use them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what ignored the interrupt
		return errors.New("interrupted")
	case errors.As(err, &exit):
		return exitCode(exit.ExitCode())
	}
	return err
}
