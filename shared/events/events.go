// Package events is the contract between the services: what an event says, as
// JSON and as Go, and which event types there are.
//
// Every event is one flat JSON object. A producer writes it with [Encode]; a
// consumer reads it with [Decode], which accepts fields it does not know, so
// that a newer producer may add some, and refuses whatever the type requires
// and lacks. The samples in testdata are promises: they must decode for ever.
package events

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The event types. They are wire names and never change; they are also the
// routing keys.
const (
	OrderCreated      = "order.created"
	OrderCancelled    = "order.cancelled"
	InventoryReserved = "inventory.reserved"
	InventoryRejected = "inventory.rejected"
)

// The exchanges that events are published to, one per service.
const (
	OrderExchange     = "orders.events"
	InventoryExchange = "inventory.events"
)

// Event is any of the events. Which fields are used depends on EventType.
type Event struct {
	EventID       string `json:"eventId"`                // ULID, the same on every copy
	EventType     string `json:"eventType"`              // one of the constants
	SchemaVersion int    `json:"schemaVersion,omitzero"` // absent means 1
	OccurredAt    Time   `json:"occurredAt"`             // UTC, microseconds
	OrderID       string `json:"orderId"`                // the aggregate
	Sequence      int64  `json:"sequence,omitzero"`      // 1, 2, 3, … within the producer's events of the order; absent in the oldest samples

	// order.created
	CustomerID string `json:"customerId,omitzero"`
	Amount     Amount `json:"amount,omitzero"`
	Currency   string `json:"currency,omitzero"` // ISO 4217
	Items      []Item `json:"items,omitzero"`

	// order.cancelled and inventory.rejected
	Reason string `json:"reason,omitzero"`
}

// Item is one line of an order.
type Item struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

// Amount is money as the JSON number it travels as, such as 199.00: it is never
// a float, so no digit is lost or added on the way.
type Amount string

// MarshalJSON writes the number as it is.
func (a Amount) MarshalJSON() ([]byte, error) { return []byte(a), nil }

// UnmarshalJSON keeps the literal of a number and refuses anything else.
func (a *Amount) UnmarshalJSON(b []byte) error {
	if jsontext.Value(b).Kind() != '0' {
		return errors.New("amount is not a number")
	}
	*a = Amount(b)
	return nil
}

// timeLayout writes UTC with microseconds, which is what PostgreSQL keeps.
const timeLayout = "2006-01-02T15:04:05.999999Z"

// Time is an instant in UTC with microseconds: the same text in an answer, in a
// row and in an event.
type Time struct{ time.Time }

// At cuts t to what a [Time] can say. It cuts and never rounds, so that the last
// moment of a day stays in that day.
func At(t time.Time) Time { return Time{t.UTC().Truncate(time.Microsecond)} }

// MarshalJSON writes the time as RFC 3339 in UTC.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Truncate(time.Microsecond).Format(timeLayout) + `"`), nil
}

// UnmarshalJSON reads RFC 3339 in any zone.
func (t *Time) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return fmt.Errorf("%q is not an RFC 3339 time", s)
	}
	*t = At(v)
	return nil
}

// Encode writes e as JSON. An event that [Decode] would refuse is an error.
func Encode(e Event) ([]byte, error) {
	if err := e.valid(); err != nil {
		return nil, fmt.Errorf("encode event: %w", err)
	}
	b, err := json.Marshal(e, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode event %s: %w", e.EventID, err)
	}
	return b, nil
}

// Decode reads an event of any known type and version. Unknown fields are
// ignored; repeated fields, invalid UTF-8, a missing required field or a value
// out of range are errors, and no further attempt will mend them. An unknown
// type or a newer schema version wraps [ErrUnknown].
func Decode(body []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(body, &e); err != nil {
		return Event{}, fmt.Errorf("decode event: %w", err)
	}
	if bytes.Contains(body, []byte(`\u0000`)) {
		if field := e.withNUL(); field != "" {
			return Event{}, fmt.Errorf("decode event: %s has a NUL character, which PostgreSQL cannot store", field)
		}
	}
	if err := e.valid(); err != nil {
		return Event{}, fmt.Errorf("decode event: %w", err)
	}
	return e, nil
}

// withNUL names a field that no row could hold.
func (e Event) withNUL() string {
	fields := map[string]string{"eventId": e.EventID, "eventType": e.EventType, "orderId": e.OrderID,
		"customerId": e.CustomerID, "currency": e.Currency, "reason": e.Reason}
	for i, it := range e.Items {
		fields[fmt.Sprintf("items[%d].sku", i)] = it.SKU
	}
	for name, value := range fields {
		if strings.ContainsRune(value, 0) {
			return name
		}
	}
	return ""
}

// ErrUnknown is an event that this version cannot understand.
var ErrUnknown = errors.New("unknown event")

func (e Event) valid() error {
	switch {
	case e.EventID == "":
		return errors.New("eventId is missing")
	case len(e.EventID) > 255:
		return errors.New("eventId is longer than 255 bytes")
	case e.OrderID == "":
		return errors.New("orderId is missing")
	case len(e.OrderID) > 64:
		return errors.New("orderId is longer than 64 bytes")
	case e.OccurredAt.IsZero():
		return errors.New("occurredAt is missing")
	case e.OccurredAt.Year() < 1 || e.OccurredAt.Year() > 9999: // a zone can lead out of what RFC 3339 can say
		return fmt.Errorf("occurredAt is in the year %d in UTC, want 1 to 9999", e.OccurredAt.Year())
	case e.Sequence < 0:
		return fmt.Errorf("sequence is %d", e.Sequence)
	case e.SchemaVersion < 0 || e.SchemaVersion > 1:
		return fmt.Errorf("%w: schemaVersion %d", ErrUnknown, e.SchemaVersion)
	}
	switch e.EventType {
	case OrderCreated:
		return e.validOrder()
	case OrderCancelled, InventoryReserved:
		return nil
	case InventoryRejected:
		if e.Reason == "" {
			return errors.New("reason is missing")
		}
		return nil
	case "":
		return errors.New("eventType is missing")
	}
	return fmt.Errorf("%w: eventType %q", ErrUnknown, e.EventType)
}

// Schema is the JSON Schema of what a producer writes.
//
//go:embed schema.json
var Schema []byte

// MaxQuantity bounds one item of an order.
const MaxQuantity = 1_000_000

func (e Event) validOrder() error {
	switch {
	case e.CustomerID == "":
		return errors.New("customerId is missing")
	case e.Amount == "":
		return errors.New("amount is missing")
	case e.Currency == "":
		return errors.New("currency is missing")
	case len(e.Items) == 0:
		return errors.New("items is empty")
	}
	for i, it := range e.Items {
		if it.SKU == "" || len(it.SKU) > 64 {
			return fmt.Errorf("items[%d].sku has %d bytes, want 1 to 64", i, len(it.SKU))
		}
		if it.Quantity < 1 || it.Quantity > MaxQuantity {
			return fmt.Errorf("items[%d].quantity is %d, want 1 to %d", i, it.Quantity, MaxQuantity)
		}
	}
	return nil
}
