package system

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/check"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/events"
)

// Settled waits until every accepted order is reserved or rejected, or cannot
// be, and nothing is on its way any more: no open row in an outbox, no event that
// its inbox does not know, no message in a queue or in the hands of a consumer.
func (s *System) Settled() {
	s.t.Helper()
	testenv.Eventually(s.t, patience, "everything settled", func() error {
		return check.Settle(s.t.Context(), s.Sources(), patience)
	})
	// What the management API says of queues is a second old.
	testenv.Eventually(s.t, patience, "empty queues", s.waiting)
}

// Sources are where internal/check looks.
func (s *System) Sources() check.Sources {
	s.t.Helper()
	vhost, err := amqp.ParseURI(s.Vhost)
	if err != nil {
		s.t.Fatal("the vhost's address is no URL") // err would show the password
	}
	broker, err := check.NewBroker(s.ManagementURL, vhost.Vhost)
	if err != nil {
		s.t.Fatal(err)
	}
	// By internal/servers queues tell their length each second, and the API
	// samples each second; the rest is for a busy machine.
	broker.Lag, broker.AMQPURL = 5*time.Second, s.Vhost
	return check.Sources{Orders: s.OrderDB, Inventory: s.InventoryDB, Broker: broker}
}

// waiting returns an error if messages wait in a queue; the final ones may hold
// what they like.
func (s *System) waiting() error {
	queues, err := s.Broker.Queues(s.t.Context())
	if err != nil {
		return err
	}
	for name := range queues {
		if !strings.HasPrefix(name, InventoryQueue) && !strings.HasPrefix(name, OrderQueue) || strings.HasSuffix(name, ".dlq") {
			continue
		}
		n, err := testenv.QueueDepth(s.Vhost, name)
		if err != nil {
			return err
		}
		if n > 0 {
			return fmt.Errorf("%d messages in %s", n, name)
		}
	}
	return nil
}

// Exact fails the test unless every order that a client was told is accepted was
// stored once, sent, handled once and answered, and nothing else was. Call it
// when everything is [System.Settled].
//
// except are ids of messages that the test has made impossible to deliver: each
// must have ended as a Failed row or in a final dead-letter queue, and nothing
// else may have ended there. A dead letter has had no effect. A Failed row may
// have arrived all the same, since nobody lived to hear of its confirm; then its
// effect is there once, as of any other.
func (s *System) Exact(except ...string) {
	s.t.Helper()
	problems, err := s.Problems(s.t.Context(), except...)
	if err != nil {
		s.t.Fatalf("look for what is not exact: %v", err)
	}
	const most = 20
	for _, problem := range problems[:min(len(problems), most)] {
		s.t.Error(problem)
	}
	if more := len(problems) - most; more > 0 {
		s.t.Errorf("and %d more", more)
	}
}

// Problems is what [System.Exact] finds, in words: what internal/check finds in
// databases and broker, and what does not fit the answers that clients had.
func (s *System) Problems(ctx context.Context, except ...string) ([]string, error) {
	// An empty list says that nothing may have ended before its goal; nil would
	// say that nobody knows.
	report, err := check.Run(ctx, s.Sources(), check.Options{Quiet: true, Except: append([]string{}, except...)})
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, v := range report.Violations {
		problems = append(problems, fmt.Sprintf("%s (%d): %s (events %s; orders %s)",
			v.Rule, v.Count, v.Detail, strings.Join(v.EventIDs, " "), strings.Join(v.OrderIDs, " ")))
	}
	told, err := s.told(ctx, s.OrderDB)
	return append(problems, told...), err
}

const ordersSQL = `select order_id, event_id, customer_id, status, items from orders`

// told holds the orders against what clients were told: the same orders, no more
// and no fewer, one for each request.
func (s *System) told(ctx context.Context, db check.Querier) (problems []string, err error) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	type order struct {
		OrderID, EventID, Customer, Status string
		Items                              []events.Item
	}
	rows, err := db.Query(ctx, ordersSQL)
	if err != nil {
		return nil, err
	}
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByPos[order])
	if err != nil {
		return nil, err
	}
	orders, customers := make(map[string]order), make(map[string]string)
	for _, o := range stored {
		if other, twice := customers[o.Customer]; twice {
			problem("the request of %s has two orders, %s and %s", o.Customer, other, o.OrderID)
		}
		orders[o.OrderID], customers[o.Customer] = o, o.OrderID
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.accepted {
		o, ok := orders[a.OrderID]
		switch {
		case !ok:
			problem("order %s was accepted and is not there", a.OrderID)
		case o.EventID != a.EventID || o.Customer != a.Customer || !slices.Equal(o.Items, a.Items):
			problem("order %s is stored as %v, accepted as %v", a.OrderID, o, a)
		case s.cancelled[a.OrderID] != (o.Status == "cancelled"):
			problem("order %s is %s; the client was told that it is cancelled: %t", a.OrderID, o.Status, s.cancelled[a.OrderID])
		}
	}
	if len(stored) != len(s.accepted) {
		problem("%d orders are stored, %d were accepted", len(stored), len(s.accepted))
	}
	var keys int
	if err := db.QueryRow(ctx, `select count(*) from idempotency_keys`).Scan(&keys); err != nil {
		return nil, err
	}
	if keys != len(s.accepted) {
		problem("%d idempotency keys are stored, %d orders were accepted", keys, len(s.accepted))
	}
	return problems, nil
}
