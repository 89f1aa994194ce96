package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"example.com/baton/internal/chaos"
	"example.com/baton/internal/record"
	"example.com/baton/internal/servers"
)

type chaosOptions struct {
	orders, rate       int
	minutes            float64
	seed               uint64
	kind               string
	json, plan         bool
	writeTo, rendering string
}

func chaosCommand() *cobra.Command {
	var opts chaosOptions
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Run everything under load, break what can break, and check that nothing is lost or done twice",
		Long: `Start a Baton of its own, with two processes of each service, put a steady load
on it, and do to it what happens to systems: processes are killed and stopped at
named steps and at random, have a wrong clock, lose their connections or hear
nothing any more; broker and database are restarted and crash; the broker runs
out of memory, and somebody deletes bindings and exchanges. Then mend it, wait
until everything is handled, and check. The exit code is 1 if a rule is broken,
or if the run was not as planned.

What is done, and when, follows from the seed. The load ends when --minutes have
passed and --orders are accepted. The data of "baton up" are not touched. Logs
of a run that fails are kept, in .baton.`,
		Example: `  baton chaos --orders 5000 --minutes 3 --seed 42`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case opts.orders < 0 || opts.minutes <= 0 || opts.rate < 1:
				return errors.New("--rate has to be 1 or more, --minutes more than 0, and --orders not below 0")
			case opts.rendering != "":
				return renderChaos(opts.rendering)
			case opts.plan:
				for _, s := range chaos.Plan(opts.seed, opts.duration()) {
					fmt.Fprintln(cmd.OutOrStdout(), s)
				}
				return nil
			}
			return runChaos(cmd, opts)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&opts.orders, "orders", 5000, "go on until at least so many orders are accepted")
	flags.Float64Var(&opts.minutes, "minutes", 3, "go on for at least so long")
	flags.Uint64Var(&opts.seed, "seed", 42, "what the plan is made from")
	flags.IntVar(&opts.rate, "rate", 60, "orders placed in a second")
	flags.BoolVar(&opts.plan, "plan", false, "only print the plan")
	flags.StringVar(&opts.writeTo, "report", "", "write the result to this JSON file, and into chaos.md beside it")
	flags.StringVar(&opts.rendering, "render", "", "only render chaos.md anew from this JSON file")
	kindFlag(cmd, &opts.kind)
	jsonFlag(cmd, &opts.json)
	cmd.MarkFlagsMutuallyExclusive("plan", "render", "report")
	return cmd
}

func (o chaosOptions) duration() time.Duration {
	return time.Duration(o.minutes * float64(time.Minute))
}

func runChaos(cmd *cobra.Command, opts chaosOptions) error {
	if err := reportPage(opts.writeTo, "chaos.md"); err != nil {
		return err
	}
	ctx, say := cmd.Context(), progress(cmd)
	var rep chaos.Report
	err := longRun(ctx, say, "chaos", opts.kind, func(home *servers.Home, kind servers.Kind) (ok bool, err error) {
		rep, err = chaos.Run(ctx, chaos.Options{
			Home: home, Kind: kind, Seed: opts.seed, Duration: opts.duration(), Orders: opts.orders, Rate: opts.rate, Progress: say,
		})
		return rep.OK, err
	})
	if err != nil {
		return err
	}
	return conclude(cmd, opts.json, rep.OK, rep, rep.Text(), opts.writeTo, func(file string) error { return writeChaos(file, rep) })
}

func writeChaos(file string, rep chaos.Report) error {
	return record.Write(file, rep, "chaos.md", "chaos", rep.Markdown())
}

func renderChaos(file string) error {
	var rep chaos.Report
	if err := record.Read(file, &rep); err != nil {
		return err
	}
	return writeChaos(file, rep)
}
