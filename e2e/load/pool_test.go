package load

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// with is an address with more parameters.
func with(address string, params url.Values) string {
	u, err := url.Parse(address)
	if err != nil {
		panic("the address of a database is no URL")
	}
	query := u.Query()
	for name, values := range params {
		query[name] = values
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// B88: each service has two connections for everything: requests, relay,
// consumer, pruning, health and metrics. Fifty requests at once are all
// accepted, and so is what comes after them.
func TestTwoConnections(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		Clients: 50, Audit: true,
		Database: func(address string) string { return with(address, url.Values{"pool_max_conns": {"2"}}) },
	})
	order, inventory := s.Start()
	for _, p := range []*system.Process{order, inventory} {
		if n := p.Metric("baton_database_connections_max"); n != 2 {
			t.Errorf("%s may have %.0f connections, want 2", p.Name, n)
		}
	}
	wantAccepted(t, s, 50)
	s.Place(500)
	s.Settled()
	s.Exact()
	if order.Metric("baton_database_waits_total") == 0 {
		t.Error("no request has ever waited for a connection: there was no load")
	}
}

// poolerSettings are what docs/operations.md asks for behind a pooler.
var poolerSettings = url.Values{
	"default_query_exec_mode":             {"exec"},
	"lock_timeout":                        {""},
	"statement_timeout":                   {""},
	"idle_in_transaction_session_timeout": {""},
}

// B91: PgBouncer hands out two server connections by transaction, and all
// processes share them.
func TestPooler(t *testing.T) {
	t.Parallel()
	pooler := testenv.Shared(t).OwnPooler(t)
	s := system.New(t, system.Options{
		Audit:    true,
		Database: func(address string) string { return with(pooler.Before(address), poolerSettings) },
	})
	s.Start()
	s.StartOrder()
	s.StartInventory()
	orders := s.Place(200)
	for i, o := range orders[:20] {
		if !s.Cancel(o) {
			t.Errorf("order %d cannot be cancelled", i)
		}
	}
	s.Settled()
	s.Exact()
}

// Without the settings that docs/operations.md asks for, a service behind a
// pooler does not half work: it waits, and /readyz says what the pooler refuses.
func TestPoolerWithoutSettings(t *testing.T) {
	t.Parallel()
	pooler := testenv.Shared(t).OwnPooler(t)
	s := system.New(t, system.Options{Database: pooler.Before})
	order := s.OrderProcess()
	order.Launch()
	testenv.Eventually(t, patience, "the reason in /readyz", func() error {
		status, body, err := order.Get("/readyz")
		if err == nil && (status != http.StatusServiceUnavailable || !strings.Contains(string(body), "unsupported startup parameter")) {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	})
}
