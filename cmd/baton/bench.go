package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"example.com/baton/internal/bench"
	"example.com/baton/internal/record"
	"example.com/baton/internal/servers"
	"example.com/baton/services/inventory"
)

type benchOptions struct {
	quick, peers       bool
	pairs              int
	kind               string
	json               bool
	writeTo, rendering string
}

func benchCommand() *cobra.Command {
	var opts benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast everything is beside its floors, and beside other ways to do the same",
		Long: `Start a Baton of its own and measure relay, consumer, POST /orders and latencies,
each in turn with its floor: what PostgreSQL or RabbitMQ does for the plainest
client with the same guarantee. On a busy machine the ratios say more than the
rates. docs/performance.md explains each, and what limits it.

It takes about twelve minutes, --quick less than three, --peers ten more. Nothing
else should run meanwhile. The exit code is 0 however fast it was.

The data of "baton up" are not touched. Logs of a run that fails are kept, in
.baton.`,
		Example: `  baton bench --quick`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.rendering != "" {
				return renderBench(opts.rendering)
			}
			if opts.pairs < 0 {
				return errors.New("--pairs has to be 1 or more")
			}
			return runBench(cmd, opts)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&opts.quick, "quick", false, "one pair of each, and only what needs no large tables")
	flags.IntVar(&opts.pairs, "pairs", 0, "how often floor and product are measured in turn; 3 unless --quick")
	flags.BoolVar(&opts.peers, "peers", false, "measure the programs of bench/peers too; it downloads what they use")
	flags.StringVar(&opts.writeTo, "report", "", "write the result into this page, and as JSON beside it")
	flags.StringVar(&opts.rendering, "render", "", "only render the page anew from this JSON file")
	kindFlag(cmd, &opts.kind)
	jsonFlag(cmd, &opts.json)
	cmd.MarkFlagsMutuallyExclusive("render", "report")
	return cmd
}

func runBench(cmd *cobra.Command, opts benchOptions) error {
	if opts.writeTo != "" {
		if _, err := os.Stat(opts.writeTo); err != nil {
			return fmt.Errorf("--report: the page has to be there: %w", err)
		}
	}
	ctx, say := cmd.Context(), progress(cmd)
	var rep bench.Report
	var used servers.Kind
	err := longRun(ctx, say, "bench", opts.kind, func(home *servers.Home, kind servers.Kind) (ok bool, err error) {
		used = kind
		o := bench.Options{Home: home, Kind: kind, Consume: consume, Quick: opts.quick, Pairs: opts.pairs, Progress: say}
		if opts.peers {
			clone, err := servers.ClonePath(".")
			if err != nil {
				return false, err
			}
			o.Peers = filepath.Join(clone, "bench", "peers")
		}
		rep, err = bench.Run(ctx, o)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	file := ""
	if opts.writeTo != "" {
		file = strings.TrimSuffix(opts.writeTo, ".md") + "." + string(used) + ".json"
	}
	return conclude(cmd, opts.json, true, rep, rep.Text(), file, func(file string) error { return writeBench(file, rep) })
}

// consume runs inventory's consumer, and nothing else of the service.
func consume(ctx context.Context, databaseURL, amqpURL string) error {
	return inventory.Consume(ctx, inventory.Config{
		DatabaseURL: databaseURL, AMQPURL: amqpURL, Logger: slog.New(slog.DiscardHandler),
	})
}

// writeBench writes docs/performance.docker.json, the section "docker" of
// docs/performance.md and the figure docs/performance.docker.svg; local servers
// have theirs.
func writeBench(file string, rep bench.Report) error {
	page, kind, ok := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json"), ".")
	if !ok {
		return fmt.Errorf("%s: want a name like performance.docker.json", file)
	}
	if len(rep.Costs) > 0 {
		if err := os.WriteFile(strings.TrimSuffix(file, ".json")+".svg", []byte(rep.Figure()), 0o644); err != nil {
			return err
		}
	}
	return record.Write(file, rep, page+".md", kind, rep.Markdown())
}

func renderBench(file string) error {
	var rep bench.Report
	if err := record.Read(file, &rep); err != nil {
		return err
	}
	return writeBench(file, rep)
}
