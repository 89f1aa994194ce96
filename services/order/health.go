package order

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/baton/internal/provision"
	migrations "example.com/baton/migrations/order"
	"example.com/baton/shared/outbox"
)

// getLive is GET /livez: the process answers, whatever else is wrong. A restart
// would not mend the database.
func (s *service) getLive(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, "application/json", map[string]string{"status": "alive"})
}

// check is one line of /readyz.
type check struct {
	Name   string `json:"name"`
	Status string `json:"status"` // "ok", "degraded", "unavailable", "not checked"
	Detail string `json:"detail,omitempty"`
}

const (
	checkOK          = "ok"
	checkDegraded    = "degraded"
	checkUnavailable = "unavailable"
	checkNotChecked  = "not checked"
)

// lagLimit is from which age on a waiting event is worth a word.
const lagLimit = 30 * time.Second

// readyTimeout bounds a readiness check.
const readyTimeout = 2 * time.Second

// getReady is GET /readyz. It is 503 only without what HTTP needs, the database
// and its schema: orders are taken through an outage of the broker, which shows
// as "degraded".
func (s *service) getReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	checks := s.checks(ctx)
	answer := struct {
		Status string  `json:"status"` // the worst of the checks
		Checks []check `json:"checks"`
	}{checkOK, checks}
	for _, c := range checks {
		switch {
		case c.Status == checkUnavailable:
			answer.Status = checkUnavailable
		case c.Status == checkDegraded && answer.Status == checkOK:
			answer.Status = checkDegraded
		}
	}
	status := http.StatusOK
	if answer.Status == checkUnavailable {
		status = http.StatusServiceUnavailable
	}
	reply(w, status, "application/json", answer)
}

func (s *service) checks(ctx context.Context) []check {
	checks := []check{{Name: "database", Status: checkOK}, {Name: "schema", Status: checkOK}}
	switch err := s.schema(ctx); {
	case errors.Is(err, provision.ErrSchema):
		checks[1] = check{"schema", checkUnavailable, err.Error()}
	case err != nil:
		checks[0] = check{"database", checkUnavailable, err.Error()}
		checks[1] = check{Name: "schema", Status: checkNotChecked}
	default:
		checks = append(checks, s.outboxCheck(ctx))
	}
	for _, part := range []struct {
		name, problem string
	}{
		{"publisher", s.publisher.State().Problem},
		{"consumer", s.consumer.State().Problem},
	} {
		c := check{Name: part.name, Status: checkOK}
		if part.problem != "" {
			c.Status, c.Detail = checkDegraded, part.problem
		}
		checks = append(checks, c)
	}
	bindings := check{Name: "bindings", Status: checkOK}
	switch state := s.audit.State(); {
	case len(state.Missing) > 0:
		bindings.Status, bindings.Detail = checkDegraded, state.Problem
	case !state.Checked:
		bindings.Status, bindings.Detail = checkNotChecked, state.Problem
	}
	return append(checks, bindings)
}

// outboxCheck tells whether events leave as fast as orders come in.
func (s *service) outboxCheck(ctx context.Context) check {
	c := check{Name: "outbox", Status: checkDegraded}
	switch stats, err := outbox.ReadStats(ctx, s.db); {
	case err != nil:
		c.Detail = err.Error()
	case stats.Failed > 0:
		c.Detail = fmt.Sprintf("%d messages have failed and wait for a decision: ./baton outbox list", stats.Failed)
	case stats.OldestPending > lagLimit:
		c.Detail = fmt.Sprintf("the oldest waiting message is %s old", stats.OldestPending.Round(time.Second))
	default:
		c.Status = checkOK
	}
	return c
}

// schema returns nil if the database is there and as this program needs it.
func (s *service) schema(ctx context.Context) error {
	return provision.CheckVersion(ctx, s.db, migrations.FS)
}

// waitForSchema returns true once the database can be used, and false when ctx
// is done. It says why it waits, once for each reason.
func (s *service) waitForSchema(ctx context.Context) bool {
	const first, longest = 100 * time.Millisecond, 5 * time.Second
	said := ""
	for pause := first; ctx.Err() == nil; pause = min(pause*2, longest) {
		err := s.schema(ctx)
		if err == nil {
			s.log.Info("database is ready")
			return true
		}
		reason := "away" // once, whatever the error says of ports
		if errors.Is(err, provision.ErrSchema) {
			reason = err.Error()
		}
		if reason != said && ctx.Err() == nil {
			s.log.Warn("waiting for the database", "err", err)
			said = reason
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return false
}
