// Baton's one command: start everything, test everything, set up and repair.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends us at once; our children notice

	err := command().ExecuteContext(ctx)
	var code exitCode
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "baton:", err)
		os.Exit(1)
	}
}

// exitCode is an error that was told already.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "baton",
		Short:         "Reliable messaging with PostgreSQL and RabbitMQ, to run, read and break",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(upCommand(), resetCommand(), migrateCommand(), setupCommand(), testCommand(), serversCommand(), outboxCommand(), checkCommand(), chaosCommand(), soakCommand(), benchCommand())
	return root
}

// progress writes lines for people to standard error; standard output is for
// results.
func progress(cmd *cobra.Command) func(string) {
	var mu sync.Mutex // servers start side by side
	return func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(cmd.ErrOrStderr(), line)
	}
}

// report prints what a command found: text for people, or one JSON object.
func report(cmd *cobra.Command, asJSON bool, result any, text string) error {
	if !asJSON {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), text)
		return err
	}
	return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
}

func jsonFlag(cmd *cobra.Command, target *bool) {
	cmd.Flags().BoolVar(target, "json", false, "print one JSON object on standard output")
}
