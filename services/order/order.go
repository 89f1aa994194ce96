package order

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"example.com/baton/shared/events"
	"example.com/baton/shared/outbox"
)

// The states of an order. answers.go and cancel.go say how they change.
const (
	statusCreated   = "created"
	statusReserved  = "reserved"
	statusRejected  = "rejected"
	statusCancelled = "cancelled"
)

// Order is an order as the API shows it.
type Order struct {
	OrderID    string        `json:"orderId"`
	EventID    string        `json:"eventId"` // of its order.created
	Status     string        `json:"status"`
	Reason     string        `json:"reason,omitempty"` // why inventory rejected it
	CustomerID string        `json:"customerId"`
	Amount     events.Amount `json:"amount"` // with the currency's decimals
	Currency   string        `json:"currency"`
	Items      []events.Item `json:"items"`
	CreatedAt  events.Time   `json:"createdAt"` // the same text as occurredAt in its order.created
	UpdatedAt  events.Time   `json:"updatedAt"`
}

// orderColumns are the columns of an [Order], in the order of its columns method.
const orderColumns = `order_id, event_id, status, coalesce(reason, ''), customer_id, amount::text, currency, items,
  created_at, updated_at`

func (o *Order) columns() []any {
	return []any{
		&o.OrderID, &o.EventID, &o.Status, &o.Reason, &o.CustomerID, (*string)(&o.Amount), &o.Currency, &o.Items,
		&o.CreatedAt.Time, &o.UpdatedAt.Time,
	}
}

var orderIDForm = regexp.MustCompile(`^ORD-[0-9]{8}-[0-9]{6,19}$`)

// orderID checks that id looks like one. Ids are compared as they are written,
// so that no other spelling leads to an order.
func orderID(id string) (string, error) {
	if !orderIDForm.MatchString(id) {
		return "", noSuchOrder(id)
	}
	return id, nil
}

func noSuchOrder(id string) error {
	return plain(http.StatusNotFound, "there is no order "+printable(id))
}

// newOrder is what a client asks for.
type newOrder struct {
	CustomerID string        `json:"customerId"`
	Amount     events.Amount `json:"amount"`
	Currency   string        `json:"currency"`
	Items      []events.Item `json:"items"`
}

// order makes the order that n asks for, with a number and a time that come from
// the database.
func (n newOrder) order(number int64, now time.Time) Order {
	at := events.At(now)
	return Order{
		OrderID:    fmt.Sprintf("ORD-%s-%06d", at.Format("20060102"), number),
		EventID:    events.NewID(at.Time),
		Status:     statusCreated,
		CustomerID: n.CustomerID,
		Amount:     n.Amount,
		Currency:   n.Currency,
		Items:      n.Items,
		CreatedAt:  at,
		UpdatedAt:  at,
	}
}

// hash tells requests apart that carry the same Idempotency-Key. It is taken of
// what was understood, so 199 and 199.00 or another order of the fields are the
// same request.
func (n newOrder) hash() []byte {
	sum := sha256.Sum256(encode(n))
	return sum[:]
}

// created is the event that o exists.
func (o Order) created() events.Event {
	return events.Event{
		EventID:    o.EventID,
		EventType:  events.OrderCreated,
		OccurredAt: o.CreatedAt,
		OrderID:    o.OrderID,
		Sequence:   1,
		CustomerID: o.CustomerID,
		Amount:     o.Amount,
		Currency:   o.Currency,
		Items:      o.Items,
	}
}

// message is e as a row of the outbox. The trace context is kept with it: by the
// time it is sent, the request that caused it is over.
func message(e events.Event, traceparent string) (outbox.Message, error) {
	payload, err := events.Encode(e)
	if err != nil {
		return outbox.Message{}, err
	}
	m := outbox.Message{
		ID: e.EventID, Type: e.EventType, AggregateID: e.OrderID, Sequence: e.Sequence,
		OccurredAt: e.OccurredAt.Time, Payload: payload,
	}
	if traceparent != "" {
		m.Headers = map[string]string{"traceparent": traceparent}
	}
	return m, nil
}
