package events

import (
	"crypto/rand"
	"time"

	"github.com/oklog/ulid/v2"
)

// NewID returns an event id for an event that happened at t: a ULID, which sorts
// by time. Its 80 random bits come from the system, so that any number of
// goroutines and processes may call it.
func NewID(t time.Time) string {
	return ulid.MustNew(ulid.Timestamp(t), rand.Reader).String()
}
