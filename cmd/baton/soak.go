package main

import (
	"errors"

	"github.com/spf13/cobra"

	"example.com/baton/internal/record"
	"example.com/baton/internal/servers"
	"example.com/baton/internal/soak"
)

type soakOptions struct {
	orders, rate       int
	minutes            float64
	kind               string
	json               bool
	writeTo, rendering string
}

func soakCommand() *cobra.Command {
	var opts soakOptions
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Run everything under a steady load for long, and check that nothing grows",
		Long: `Start a Baton of its own, with one process of each service, and place orders at
a steady rate while what is old is removed all the time. Memory, goroutines,
files, connections, tables, indexes, queues and the times of claims and answers
must be in the last quarter of the run what they were in the second. Then wait
until everything is handled, and check. The exit code is 1 if something has
grown, a rule is broken, or the services did not keep up.

A run of less than five minutes says little about tables: PostgreSQL looks once
a minute for what there is to vacuum.

The data of "baton up" are not touched. Logs of a run that fails are kept, in
.baton.`,
		Example: `  baton soak --rate 300 --minutes 10`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.rendering != "" {
				return renderSoak(opts.rendering)
			}
			if opts.rate < 1 || opts.orders < 1 || opts.minutes < 0 {
				return errors.New("--orders and --rate have to be 1 or more, and --minutes not below 0")
			}
			if opts.minutes > 0 {
				opts.orders = max(int(opts.minutes*60*float64(opts.rate)), 1)
			}
			return runSoak(cmd, opts)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&opts.orders, "orders", 200_000, "orders to place")
	flags.IntVar(&opts.rate, "rate", 400, "orders placed in a second")
	flags.Float64Var(&opts.minutes, "minutes", 0, "place orders for so long, in place of --orders")
	flags.StringVar(&opts.writeTo, "report", "", "write the result to this JSON file, and into chaos.md beside it")
	flags.StringVar(&opts.rendering, "render", "", "only render chaos.md anew from this JSON file")
	kindFlag(cmd, &opts.kind)
	jsonFlag(cmd, &opts.json)
	cmd.MarkFlagsMutuallyExclusive("orders", "minutes")
	cmd.MarkFlagsMutuallyExclusive("render", "report")
	return cmd
}

func runSoak(cmd *cobra.Command, opts soakOptions) error {
	if err := reportPage(opts.writeTo, "chaos.md"); err != nil {
		return err
	}
	ctx, say := cmd.Context(), progress(cmd)
	var rep soak.Report
	err := longRun(ctx, say, "soak", opts.kind, func(home *servers.Home, kind servers.Kind) (ok bool, err error) {
		rep, err = soak.Run(ctx, soak.Options{Home: home, Kind: kind, Orders: opts.orders, Rate: opts.rate, Progress: say})
		return rep.OK, err
	})
	if err != nil {
		return err
	}
	return conclude(cmd, opts.json, rep.OK, rep, rep.Text(), opts.writeTo, func(file string) error { return writeSoak(file, rep) })
}

func writeSoak(file string, rep soak.Report) error {
	return record.Write(file, rep, "chaos.md", "soak", rep.Markdown())
}

func renderSoak(file string) error {
	var rep soak.Report
	if err := record.Read(file, &rep); err != nil {
		return err
	}
	return writeSoak(file, rep)
}
