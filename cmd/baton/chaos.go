package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
every step and at random, have a wrong clock, lose their connections or hear
nothing any more; broker and database are restarted and crash; the broker runs
out of memory, and somebody deletes bindings and exchanges. Then mend it, wait
until everything is handled, and check.

What is done, and when, follows from the seed. The data of "baton up" are not
touched. Logs of a run that fails are kept.`,
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
	flags.IntVar(&opts.orders, "orders", 5000, "go on until so many orders are accepted")
	flags.Float64Var(&opts.minutes, "minutes", 3, "go on for so long")
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
	if opts.writeTo != "" {
		if err := writeChaos(opts.writeTo, rep); err != nil {
			return err
		}
	}
	if err := report(cmd, opts.json, rep, rep.Text()); err != nil {
		return err
	}
	if !rep.OK {
		return exitCode(1)
	}
	return nil
}

func writeChaos(file string, rep chaos.Report) error {
	return record.Write(file, rep, "chaos.md", "chaos", rep.Markdown())
}

func renderChaos(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var rep chaos.Report
	if err := json.Unmarshal(data, &rep); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return writeChaos(file, rep)
}
