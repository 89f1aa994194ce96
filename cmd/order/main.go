// Command order is the order service. See -h for its settings.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"example.com/baton/services/order"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	if err := run(ctx, os.Args[1:], os.Getenv, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "order:", err)
		os.Exit(1) // the only exit in the program
	}
}

func run(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer) error {
	s, err := readSettings(args, getenv, stderr)
	if err != nil {
		return err
	}
	if s.health {
		return alive(ctx, s.HTTPAddr)
	}
	s.Logger = slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: s.logLevel}))
	return order.Run(ctx, s.Config)
}
