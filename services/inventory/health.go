package inventory

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/baton/internal/provision"
	migrations "example.com/baton/migrations/inventory"
	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// getLive is GET /livez: the process answers, whatever else is wrong. A restart
// would not mend the database.
func (s *service) getLive(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, map[string]string{"status": "alive"})
}

// check is one line of /readyz.
type check struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// What a check can say. The worst of them is the status of the whole.
const (
	statusOK          = "ok"
	statusNotChecked  = "not checked"
	statusDegraded    = "degraded"    // it works, and somebody should look
	statusUnavailable = "unavailable" // no order is being reserved
)

const readyTimeout = 2 * time.Second

// getReady is GET /readyz. It is 503 without the database, its schema or the
// broker: nothing of what this service is for works without any of them.
func (s *service) getReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	checks := append(s.databaseChecks(ctx),
		brokerCheck("consumer", s.queues.state()),
		brokerCheck("publisher", s.publisher.State()),
		bindingsCheck(s.audit.State()))
	worst, code := statusOK, http.StatusOK
	for _, c := range checks {
		switch {
		case c.Status == statusUnavailable:
			worst, code = statusUnavailable, http.StatusServiceUnavailable
		case c.Status == statusDegraded && worst == statusOK:
			worst = statusDegraded
		}
	}
	reply(w, code, struct {
		Status string  `json:"status"`
		Checks []check `json:"checks"`
	}{worst, checks})
}

func (s *service) databaseChecks(ctx context.Context) []check {
	switch err := s.schema(ctx); {
	case errors.Is(err, provision.ErrSchema):
		return []check{{Name: "database", Status: statusOK}, {"schema", statusUnavailable, err.Error()}}
	case err != nil:
		return []check{{"database", statusUnavailable, err.Error()}, {Name: "schema", Status: statusNotChecked}}
	}
	return []check{{Name: "database", Status: statusOK}, {Name: "schema", Status: statusOK}, s.outboxCheck(ctx)}
}

// lagLimit is from which age on a waiting answer is worth a word.
const lagLimit = 30 * time.Second

// outboxCheck tells whether answers leave as fast as orders come in.
func (s *service) outboxCheck(ctx context.Context) check {
	c := check{Name: "outbox", Status: statusDegraded}
	switch stats, err := outbox.ReadStats(ctx, s.db); {
	case err != nil:
		c.Detail = err.Error()
	case stats.Failed > 0:
		c.Detail = fmt.Sprintf("%d messages have failed and wait for a decision: ./baton outbox list", stats.Failed)
	case stats.OldestPending > lagLimit:
		c.Detail = fmt.Sprintf("the oldest waiting message is %s old", stats.OldestPending.Round(time.Second))
	default:
		c.Status = statusOK
	}
	return c
}

func brokerCheck(name string, state rabbit.State) check {
	switch {
	case !state.Connected:
		return check{name, statusUnavailable, state.Problem}
	case state.Problem != "":
		return check{name, statusDegraded, state.Problem}
	}
	return check{Name: name, Status: statusOK}
}

func bindingsCheck(state rabbit.AuditState) check {
	switch {
	case len(state.Missing) > 0:
		return check{"bindings", statusDegraded, state.Problem}
	case !state.Checked:
		return check{"bindings", statusNotChecked, state.Problem}
	}
	return check{Name: "bindings", Status: statusOK}
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
