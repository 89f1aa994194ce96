package outage

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// The services start before anything they need accepts connections. They wait,
// say what for, and show no password to anybody meanwhile. (B103, B108)
func servicesStartFirst(t *testing.T, own *testenv.Servers) {
	const secret = "S3cr3t"
	s := system.New(t, system.Options{Servers: &own.Env})
	user := func(rights func(name, password string) provision.BrokerUser) string {
		return own.VhostUser(t, s.Vhost, func(name, _ string) provision.BrokerUser { return rights(name, secret+"Broker") })
	}
	management := "BATON_MANAGEMENT_URL=" + own.ManagementURL(t, user(provision.AuditUser))
	order := s.OrderProcess("BATON_AUDIT_EVERY=1s", management,
		"ORDER_DATABASE_URL="+serviceURL(t, s.OrderDB, secret+"Db"), "ORDER_AMQP_URL="+user(provision.OrderUser))
	inventory := s.InventoryProcess("BATON_AUDIT_EVERY=1s", management,
		"INVENTORY_DATABASE_URL="+serviceURL(t, s.InventoryDB, secret+"Db"), "INVENTORY_AMQP_URL="+user(provision.InventoryUser))
	for _, server := range []interface{ Kill() error }{own.Postgres, own.Broker} {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
	}

	order.Launch()
	inventory.Launch()
	eventuallyReady(t, 10*time.Second, order, http.StatusServiceUnavailable, "unavailable", "database unavailable", "connect")
	eventuallyReady(t, 10*time.Second, inventory, http.StatusServiceUnavailable, "unavailable", "database unavailable", "connect")
	wantNoSecret(t, secret, everythingShown(t, order), everythingShown(t, inventory))
	for _, p := range []*system.Process{order, inventory} {
		p.Stop() // who waits ends when told to
		p.Launch()
	}

	pause(t, 3*time.Second)
	if err := own.Postgres.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventuallyReady(t, 20*time.Second, order, http.StatusOK, "degraded", "publisher degraded", "connect")
	eventuallyReady(t, 20*time.Second, inventory, http.StatusServiceUnavailable, "unavailable", "consumer unavailable", "connect")
	wantNoSecret(t, secret, everythingShown(t, order), everythingShown(t, inventory))
	s.Place(20)

	pause(t, 3*time.Second)
	if err := own.Broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventuallyReady(t, 45*time.Second, order, http.StatusOK, "ok")
	eventuallyReady(t, 45*time.Second, inventory, http.StatusOK, "ok")
	s.Settled()
	s.Exact()
	for _, p := range []*system.Process{order, inventory} {
		wantNoSecret(t, secret, everythingShown(t, p))
		if n := len(records(p)); n > 40 {
			t.Errorf("%s has logged %d lines, most of them about waiting", p.Name, n)
		}
	}
}

// serviceURL gives the service's role of a database this password, and returns
// the address with it.
func serviceURL(t *testing.T, db *pgxpool.Pool, password string) string {
	t.Helper()
	role := serviceRole(t, db)
	if _, err := db.Exec(t.Context(), `alter role `+role+` password '`+password+`'`); err != nil {
		t.Fatal(err)
	}
	return as(t, db.Config().ConnString(), role, password)
}

// as is address for another user.
func as(t *testing.T, address, user, password string) string {
	t.Helper()
	u := parse(t, address)
	u.User = url.UserPassword(user, password)
	return u.String()
}

func userOf(t *testing.T, address string) string {
	t.Helper()
	return parse(t, address).User.Username()
}

func parse(t *testing.T, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal("address is no URL") // err would show the password
	}
	return u
}

// everythingShown is the log of a process and its answers, good and bad.
func everythingShown(t *testing.T, p *system.Process) string {
	t.Helper()
	shown := []string{p.Log()}
	for _, path := range []string{"/readyz", "/livez", "/metrics", "/orders", "/orders/ORD-20260715-000001", "/timeline/ORD-20260715-000001", "/stock", "/reservations/x"} {
		_, body, err := p.Get(path)
		if err != nil {
			t.Fatal(err)
		}
		shown = append(shown, string(body))
	}
	res, err := http.Post(p.URL()+"/orders", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(append(shown, string(body)), "\n")
}

func wantNoSecret(t *testing.T, secret string, shown ...string) {
	t.Helper()
	for _, text := range shown {
		if at := strings.Index(text, secret); at >= 0 {
			t.Errorf("a password is shown: …%s…", text[max(0, at-80):min(len(text), at+40)])
		}
	}
}
