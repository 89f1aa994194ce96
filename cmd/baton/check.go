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

	"example.com/baton/internal/check"
	"example.com/baton/internal/provision"
	"example.com/baton/internal/stack"
	"example.com/baton/services/inventory"
	"example.com/baton/services/order"
)

type checkOptions struct {
	at    connections
	name  string
	event string
	wait  time.Duration
	check check.Options
	json  bool
}

func checkCommand() *cobra.Command {
	var opts checkOptions
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare both databases and the broker with what must be true",
		Long: `Compare both databases and the broker with what must be true: every accepted
order is reserved, rejected, released, cancelled first, dead, failed or in
flight; nothing is lost and nothing is there twice. It only reads, and may run
while orders flow. The exit code is 1 if a rule is broken; docs/operations.md
says for each what to do.

It waits until nothing is on its way, no longer than --wait, so that what is
lost shows. A system that is busy all the time is checked all the same.

With --event it shows all that is stored of one event and its order instead.

The servers are those of the flags, else of $ORDER_DATABASE_URL,
$INVENTORY_DATABASE_URL and $BATON_MANAGEMENT_URL, else of the "baton up" that
runs in this clone. With docker-compose.yml:

  docker compose run --rm --no-deps setup baton check`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.event != "" {
				return opts.showEvent(cmd)
			}
			return opts.run(cmd)
		},
	}
	flags := cmd.Flags()
	// Defaults are not shown: they may hold passwords.
	flags.StringVar(&opts.at.Order, "order", "", "address of the order database ($ORDER_DATABASE_URL)")
	flags.StringVar(&opts.at.Inventory, "inventory", "", "address of the inventory database ($INVENTORY_DATABASE_URL)")
	flags.StringVar(&opts.at.Management, "management", "", "address of the broker's management API, as an administrator ($BATON_ADMIN_MANAGEMENT_URL, $BATON_MANAGEMENT_URL)")
	flags.StringVar(&opts.at.AMQP, "amqp", "", "address of the broker; with it, what waits in a queue is known at once")
	flags.StringVar(&opts.at.Vhost, "vhost", "/", "vhost of the broker")
	flags.StringVar(&opts.name, "name", defaultName, "the --name of the running \"baton up\"")
	flags.StringVar(&opts.event, "event", "", "show the timeline of this event id or order id, and where it is dead-lettered")
	flags.DurationVar(&opts.wait, "wait", 30*time.Second, "longest wait until nothing is on its way; 0 for none")
	flags.DurationVar(&opts.check.OutboxKeep, "outbox-keep", 7*24*time.Hour, "the services' --outbox-keep: older rows may be gone")
	flags.DurationVar(&opts.check.InboxKeep, "inbox-keep", 30*24*time.Hour, "the services' --inbox-keep: older ids may be gone")
	flags.DurationVar(&opts.check.LeaseGrace, "lease-grace", 30*time.Second, "how long past its lease a claimed row may wait for its next claim")
	jsonFlag(cmd, &opts.json)
	return cmd
}

func (o checkOptions) run(cmd *cobra.Command) error {
	return o.with(cmd.Context(), func(src check.Sources, _, _ *pgx.Conn) error {
		ctx := cmd.Context()
		// Nobody needs to hear of a short wait.
		slow := time.AfterFunc(2*time.Second, func() {
			progress(cmd)(fmt.Sprintf("waiting until nothing is on its way, no longer than --wait %s", o.wait))
		})
		defer slow.Stop()
		look := func() (check.Report, error) { return check.RunSettled(ctx, src, o.check, o.wait) }
		if o.wait <= 0 {
			slow.Stop()
			look = func() (check.Report, error) { return check.Run(ctx, src, o.check) }
		}
		result, err := look()
		if err != nil {
			return err
		}
		if err := report(cmd, o.json, result, strings.TrimRight(result.Text(), "\n")); err != nil {
			return err
		}
		if !result.OK {
			return exitCode(1)
		}
		return nil
	})
}

// with connects to what is to be checked.
func (o checkOptions) with(ctx context.Context, do func(src check.Sources, order, inventory *pgx.Conn) error) error {
	at, err := o.find()
	if err != nil {
		return err
	}
	var src check.Sources
	if at.Management != "" {
		if src.Broker, err = check.NewBroker(at.Management, at.Vhost); err != nil {
			return err
		}
		src.Broker.AMQPURL = at.AMQP
	}
	var databases [2]*pgx.Conn
	for i, db := range []struct{ of, url string }{{"order", at.Order}, {"inventory", at.Inventory}} {
		conn, err := pgx.Connect(ctx, db.url)
		if err != nil {
			return fmt.Errorf("database of %s: %w", db.of, err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing is pending on it
		databases[i] = conn
	}
	src.Orders, src.Inventory = databases[0], databases[1]
	return do(src, databases[0], databases[1])
}

// find says where everything is: by flags, else by the environment, else of the
// running "up". Those three do not mix, but for the broker's address.
func (o checkOptions) find() (connections, error) {
	at := o.at
	at.Order = cmp.Or(at.Order, os.Getenv("ORDER_DATABASE_URL"))
	at.Inventory = cmp.Or(at.Inventory, os.Getenv("INVENTORY_DATABASE_URL"))
	at.Management = cmp.Or(at.Management, os.Getenv("BATON_ADMIN_MANAGEMENT_URL"), os.Getenv("BATON_MANAGEMENT_URL"))
	if server := os.Getenv("BATON_ADMIN_DATABASE_URL"); server != "" && at.Order == "" && at.Inventory == "" {
		var err error
		if at.Order, err = provision.DatabaseURL(server, stack.Order.Database); err != nil {
			return at, err
		}
		if at.Inventory, err = provision.DatabaseURL(server, stack.Inventory.Database); err != nil {
			return at, err
		}
	}
	switch {
	case at.Order != "" && at.Inventory != "":
		return at, nil
	case at.Order != "":
		return at, errors.New("set --inventory or $INVENTORY_DATABASE_URL too")
	case at.Inventory != "":
		return at, errors.New("set --order or $ORDER_DATABASE_URL too")
	}
	running, err := readConnections(o.name)
	if errors.Is(err, fs.ErrNotExist) {
		return at, errors.New("no \"baton up\" runs in this clone: start it, or set --order and --inventory; " +
			"in containers: docker compose run --rm --no-deps setup baton check")
	}
	return running, err
}

// story is all that is known of one event and its order.
type story struct {
	OrderID string             `json:"order_id,omitempty"`
	Steps   []step             `json:"steps"`
	Dead    []check.DeadLetter `json:"dead"`
}

func (o checkOptions) showEvent(cmd *cobra.Command) error {
	return o.with(cmd.Context(), func(src check.Sources, orders, reservations *pgx.Conn) error {
		ctx := cmd.Context()
		s := story{Steps: []step{}, Dead: []check.DeadLetter{}}
		var err error
		if s.OrderID, err = check.OrderOf(ctx, src, o.event); err != nil {
			return err
		}
		if s.OrderID != "" {
			if s.Steps, err = timeline(ctx, orders, reservations, s.OrderID); err != nil {
				return err
			}
		}
		if src.Broker != nil {
			ids := []string{o.event}
			for _, st := range s.Steps {
				ids = append(ids, st.EventID)
			}
			if s.Dead, err = src.Broker.FindDead(ctx, ids...); err != nil {
				return err
			}
		}
		if s.OrderID == "" && len(s.Dead) == 0 {
			return fmt.Errorf("%s is neither an event id nor an order id that anything here knows", o.event)
		}
		return report(cmd, o.json, s, s.text())
	})
}

// timeline is what both databases say of an order, by time.
func timeline(ctx context.Context, orders, reservations *pgx.Conn, orderID string) ([]step, error) {
	var both [2][]step
	// A row keeps the end of its lease; by the default lease that tells of its claim.
	const lease = 30 * time.Second
	accepted, err := order.Timeline(ctx, orders, orderID, lease)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	for _, st := range accepted {
		both[0] = append(both[0], step{"order", st.At.Time, st.Step, st.EventID, st.Detail})
	}
	_, booked, err := inventory.Timeline(ctx, reservations, orderID)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	for _, st := range booked {
		both[1] = append(both[1], step{"inventory", st.At.Time, st.Step, st.EventID, st.Detail})
	}
	return byTime(both[0], both[1]), nil
}

func (s story) text() string {
	var text strings.Builder
	if s.OrderID != "" {
		fmt.Fprintf(&text, "order %s\n\n", s.OrderID)
	}
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, st := range s.Steps {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", st.At.UTC().Format("2006-01-02T15:04:05.000Z"), st.Service, st.Step, st.EventID, st.Detail)
	}
	_ = table.Flush() // a strings.Builder takes everything
	for _, d := range s.Dead {
		fmt.Fprintf(&text, "\n%s is in %s: %s\n", d.EventID, d.Queue, cmp.Or(d.Reason, "it does not say why"))
	}
	return strings.TrimRight(text.String(), "\n")
}
