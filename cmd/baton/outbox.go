package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"example.com/baton/shared/outbox"
)

// outboxOptions is which outbox to work on.
type outboxOptions struct {
	service, database, name string
	json                    bool
}

func outboxCommand() *cobra.Command {
	var opts outboxOptions
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Look at messages that have not left, and decide about those that failed",
		Long: `Look at messages that have not left an outbox, and decide about those that
failed. The database is --database, else $ORDER_DATABASE_URL or
$INVENTORY_DATABASE_URL, else that of the "baton up" that runs in this clone.`,
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&opts.service, "service", "order", "whose outbox: order or inventory")
	flags.StringVar(&opts.database, "database", "", "database URL, in place of the one that is found")
	flags.StringVar(&opts.name, "name", defaultName, "the --name of the running \"baton up\"")
	flags.BoolVar(&opts.json, "json", false, "print one JSON object on standard output")

	var status string
	var limit int
	list := &cobra.Command{
		Use:   "list",
		Short: "List what is not published, oldest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.with(cmd.Context(), func(db *pgx.Conn) error { return listOutbox(cmd, db, opts, status, limit) })
		},
	}
	list.Flags().StringVar(&status, "status", "", "only Pending, Processing or Failed")
	list.Flags().IntVar(&limit, "limit", 100, "most rows to list")

	var all bool
	requeue := &cobra.Command{
		Use:   "requeue [EVENT-ID...]",
		Short: "Make failed messages pending again, with a full budget",
		RunE: func(cmd *cobra.Command, ids []string) error {
			if all == (len(ids) > 0) {
				return errors.New("name the event ids to requeue, or say --all")
			}
			return opts.with(cmd.Context(), func(db *pgx.Conn) error {
				done, err := outbox.Requeue(cmd.Context(), db, ids...)
				return reportChanged(cmd, opts, "requeued", done, ids, err)
			})
		},
	}
	requeue.Flags().BoolVar(&all, "all", false, "all that failed")

	discard := &cobra.Command{
		Use:   "discard EVENT-ID...",
		Short: "Delete failed messages that are never to be sent",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return opts.with(cmd.Context(), func(db *pgx.Conn) error {
				done, err := outbox.Discard(cmd.Context(), db, ids...)
				return reportChanged(cmd, opts, "discarded", done, ids, err)
			})
		},
	}
	cmd.AddCommand(list, requeue, discard)
	return cmd
}

// with connects to the outbox's database for do.
func (o outboxOptions) with(ctx context.Context, do func(*pgx.Conn) error) error {
	if o.service != "order" && o.service != "inventory" {
		return fmt.Errorf("--service %q: want order or inventory", o.service)
	}
	url, err := o.databaseURL()
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("database of %s: %w", o.service, err)
	}
	defer func() { _ = conn.Close(ctx) }() // nothing is pending on it
	return do(conn)
}

func (o outboxOptions) databaseURL() (string, error) {
	variable := strings.ToUpper(o.service) + "_DATABASE_URL"
	if url := cmp.Or(o.database, os.Getenv(variable)); url != "" {
		return url, nil
	}
	running, err := readConnections(o.name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no \"baton up\" runs in this clone: start it, or set --database or $%s", variable)
	}
	return map[string]string{"order": running.Order, "inventory": running.Inventory}[o.service], err
}

func listOutbox(cmd *cobra.Command, db *pgx.Conn, opts outboxOptions, status string, limit int) error {
	rows, err := outbox.List(cmd.Context(), db, status, limit)
	if err != nil {
		return err
	}
	stats, err := outbox.ReadStats(cmd.Context(), db)
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "outbox of %s: %d pending, %d in hand, %d failed\n", opts.service, stats.Pending, stats.Processing, stats.Failed)
	if len(rows) > 0 {
		w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "\nEVENT ID\tTYPE\tAGGREGATE\tSTATUS\tATTEMPTS\tSINCE\tLAST ERROR")
		for _, r := range rows {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", r.EventID, r.EventType, r.AggregateID, r.Status, r.Attempts,
				r.CreatedAt.UTC().Format(time.RFC3339), r.LastError)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return report(cmd, opts.json, map[string]any{
		"service": opts.service, "pending": stats.Pending, "processing": stats.Processing, "failed": stats.Failed,
		"rows": append([]outbox.Row{}, rows...),
	}, strings.TrimRight(text.String(), "\n"))
}

// reportChanged fails when an id that was asked for was not there to change.
func reportChanged(cmd *cobra.Command, opts outboxOptions, what string, done, asked []string, err error) error {
	if err != nil {
		return err
	}
	result := map[string]any{"service": opts.service, what: append([]string{}, done...)}
	if err := report(cmd, opts.json, result, fmt.Sprintf("%s %d: %s", what, len(done), strings.Join(done, " "))); err != nil {
		return err
	}
	if missing := len(asked) - len(done); len(asked) > 0 && missing > 0 {
		return fmt.Errorf("%d of the ids are not failed messages of %s", missing, opts.service)
	}
	return nil
}
