// Package zoo keeps the mistakes: each file is one leg of the way from an order
// to its reservation as it is often written, and wrong. All the rest is the
// product: its schema, its topology, its services, its libraries. So what goes
// wrong is the mistake's doing, and internal/check has to find it.
//
// Nothing of Baton imports this package. Read a file from the top: it says what
// the code looks like, why people write it, what breaks and when, and where
// Baton does it right. harness.go has what is not the mistake.
//
//	go run ./labs/zoo/run                     lists the mistakes
//	go run ./labs/zoo/run requeue-loop        makes one, on servers of yours
package zoo

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Leg is the part of the way that a mistake takes the place of.
type Leg string

// The legs. A mistake in Placing takes orders, one in Relaying sends the events
// of orders that are stored, one in Consuming reserves in inventory's place.
const (
	Placing   Leg = "placing"
	Relaying  Leg = "relaying"
	Consuming Leg = "consuming"
)

// Mistake is one inhabitant.
type Mistake struct {
	Name string // "requeue-loop"; its file is requeue_loop.go
	Leg  Leg
	Rule string // of internal/check, which catches it
	run  func(ctx context.Context, s *stage) error
}

// Mistakes are all of them, along the way of an order.
func Mistakes() []Mistake {
	return []Mistake{
		{"publish-before-commit", Placing, "reservation-without-order", publishBeforeCommit},
		{"publish-after-commit", Placing, "order-without-event", publishAfterCommit},
		{"returns-ignored", Relaying, "event-lost", returnsIgnored},
		{"nack-as-success", Relaying, "event-lost", nackAsSuccess},
		{"unknown-as-success", Relaying, "event-lost", unknownAsSuccess},
		{"lock-without-transaction", Relaying, "too-many-copies", lockWithoutTransaction},
		{"fixed-locked-by", Relaying, "event-lost", fixedLockedBy},
		{"claim-without-expiry", Relaying, "claim-expired", claimWithoutExpiry},
		{"ack-before-commit", Consuming, "event-lost", ackBeforeCommit},
		{"inbox-before-work", Consuming, "inbox-without-work", inboxBeforeWork},
		{"look-then-insert", Consuming, "stock", lookThenInsert},
		{"inbox-row-kept", Consuming, "inbox-without-work", inboxRowKept},
		{"exhausted-nacked", Consuming, "too-many-deliveries", exhaustedNacked},
		{"forward-without-confirm", Consuming, "event-lost", forwardWithoutConfirm},
		{"requeue-loop", Consuming, "too-many-deliveries", requeueLoop},
	}
}

// Main makes the mistake that args name, until ctx is done or standard input
// ends, or lists all of them. Where it works it takes from the variables that
// the services have:
//
//	ORDER_DATABASE_URL, ORDER_AMQP_URL          for placing and relaying
//	INVENTORY_DATABASE_URL, INVENTORY_AMQP_URL  for consuming
//	BATON_RETRY_TTL                             as the queue was declared, default 2s
//	ZOO_ORDERS                                  how many to place, default 10
//	ZOO_FAULT                                   "die at published", see [Fault]
func Main(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return list(stdout)
	}
	i := slices.IndexFunc(Mistakes(), func(m Mistake) bool { return m.Name == args[0] })
	if i < 0 || len(args) > 1 {
		return fmt.Errorf("want the name of one mistake, got %q; without a name they are listed", args)
	}
	m := Mistakes()[i]

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := open(ctx, m.Leg, getenv)
	if err != nil {
		return err
	}
	defer s.close()
	s.said = stderr
	s.log = slog.New(slog.NewTextHandler(stderr, nil))
	s.lines = make(chan struct{})
	go func() { // ends with the input, at the latest with the process
		defer cancel()
		for in := bufio.NewScanner(stdin); in.Scan(); {
			select {
			case s.lines <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	s.log.Info("zoo: started", "mistake", m.Name)
	if err := m.run(ctx, s); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	return nil
}

func list(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "mistake\tin place of\trule that catches it")
	for _, m := range Mistakes() {
		fmt.Fprintf(table, "%s\t%s\t%s\n", m.Name, m.Leg, m.Rule)
	}
	return table.Flush()
}

// stage is where a mistake is made.
type stage struct {
	db       *pgxpool.Pool // of the service whose leg it is
	amqpURL  string
	conn     *amqp.Connection
	ch       *amqp.Channel      // in confirm mode, but not for consuming
	returns  <-chan amqp.Return // of ch
	retryTTL time.Duration
	orders   int
	fault    Fault

	log   *slog.Logger
	said  io.Writer     // what a fault says of itself
	lines chan struct{} // one for each line of standard input
}

func open(ctx context.Context, leg Leg, getenv func(string) string) (*stage, error) {
	s := &stage{retryTTL: 2 * time.Second, orders: 10}
	service := "ORDER"
	if leg == Consuming {
		service = "INVENTORY"
	}
	s.amqpURL = getenv(service + "_AMQP_URL")
	databaseURL := getenv(service + "_DATABASE_URL")
	if s.amqpURL == "" || databaseURL == "" {
		return nil, fmt.Errorf("$%s_DATABASE_URL and $%[1]s_AMQP_URL are required", service)
	}
	err := errors.Join(
		set(&s.retryTTL, time.ParseDuration, getenv, "BATON_RETRY_TTL"),
		set(&s.orders, strconv.Atoi, getenv, "ZOO_ORDERS"),
		set(&s.fault, ParseFault, getenv, "ZOO_FAULT"))
	if err != nil {
		return nil, err
	}
	if _, err := amqp.ParseURI(s.amqpURL); err != nil {
		return nil, fmt.Errorf("$%s_AMQP_URL is no address of a broker", service) // err would show the password
	}
	if s.db, err = pgxpool.New(ctx, databaseURL); err != nil {
		return nil, fmt.Errorf("open database pool: %w", err)
	}
	if s.conn, err = amqp.Dial(s.amqpURL); err != nil {
		s.db.Close()
		return nil, fmt.Errorf("connect to the broker: %w", err)
	}
	s.ch, err = s.conn.Channel()
	if err == nil && leg != Consuming {
		// As many as a relay has in flight, or the library's reader would wait.
		s.returns = s.ch.NotifyReturn(make(chan amqp.Return, 1000))
		err = s.ch.Confirm(false)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("open channel: %w", err)
	}
	return s, nil
}

// set sets a value by a variable, if there is one.
func set[T any](p *T, parse func(string) (T, error), getenv func(string) string, name string) error {
	text := getenv(name)
	if text == "" {
		return nil
	}
	v, err := parse(text)
	if err != nil {
		return fmt.Errorf("$%s is %q: %w", name, text, err)
	}
	*p = v
	return nil
}

func (s *stage) close() {
	// It may be gone, and then there is nothing to close.
	_ = s.conn.CloseDeadline(time.Now().Add(2 * time.Second))
	s.db.Close()
}

// Fault is what happens to a process at a point of its work.
type Fault struct {
	// Action is "die" (by SIGKILL), "wait" (once, for a line on standard input),
	// "fail" (with an error, each time) or "stumble" (once).
	Action string
	Point  string
	After  int // times to let pass first
}

// ParseFault reads "die at published" or "die at published after 2".
func ParseFault(text string) (f Fault, err error) {
	n, _ := fmt.Sscanf(text, "%s at %s after %d", &f.Action, &f.Point, &f.After)
	if n < 2 || !slices.Contains([]string{"die", "wait", "fail", "stumble"}, f.Action) {
		return Fault{}, errors.New(`want "die at POINT", or wait, fail or stumble, and "after N" if you like`)
	}
	return f, nil
}

// at is a point that a fault can be for; a mistake names those where it hurts.
func (s *stage) at(ctx context.Context, point, id string) error {
	if s.fault.Point != point {
		return nil
	}
	if s.fault.After > 0 {
		s.fault.After--
		return nil
	}
	fmt.Fprintf(s.said, "zoo: %s at %s %s\n", s.fault.Action, point, cmp.Or(id, "-"))
	switch s.fault.Action {
	case "die":
		die()
	case "wait":
		s.fault.Point = "" // once
		select {
		case <-s.lines:
		case <-ctx.Done():
			return ctx.Err()
		}
	case "stumble":
		s.fault.Point = ""
		return errors.New("stumbled, as it was told to")
	case "fail":
		return errors.New("failed, as it was told to")
	}
	return nil
}
