package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/provision"
)

// Vhost returns the AMQP address of a fresh vhost, as the administrator. The
// names in it are the test's own, so the usual ones can be used.
func Vhost(t testing.TB) string {
	t.Helper()
	return Shared(t).Vhost(t)
}

// Vhost is like the function Vhost, on this pair.
func (e *Env) Vhost(t testing.TB) string {
	t.Helper()
	name := unique()
	m := e.management(t)
	// Its maker gets all rights in it.
	if err := m.Do(t.Context(), http.MethodPut, provision.Path("vhosts", name), struct{}{}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := atEnd()
		defer cancel()
		if err := m.Do(ctx, http.MethodDelete, provision.Path("vhosts", name), nil, nil); err != nil && !provision.NotFound(err) {
			t.Error(err)
		}
	})
	return as(t, e.amqpURL, nil, name)
}

// VhostUser makes a broker user for the test, with a unique name, and returns
// its AMQP address. vhostURL is what Vhost returned; rights is one of
// provision.OrderUser, InventoryUser and AuditUser, or a function like them.
func VhostUser(t testing.TB, vhostURL string, rights func(name, password string) provision.BrokerUser) string {
	t.Helper()
	return Shared(t).VhostUser(t, vhostURL, rights)
}

// VhostUser is like the function VhostUser, on this pair.
func (e *Env) VhostUser(t testing.TB, vhostURL string, rights func(name, password string) provision.BrokerUser) string {
	t.Helper()
	m, user := e.management(t), rights(unique(), unique())
	if err := provision.Broker(t.Context(), m, vhostName(t, vhostURL), user); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := atEnd()
		defer cancel()
		if err := m.Do(ctx, http.MethodDelete, provision.Path("users", user.Name), nil, nil); err != nil {
			t.Error(err)
		}
	})
	return as(t, vhostURL, url.UserPassword(user.Name, user.Password), vhostName(t, vhostURL))
}

// ManagementURL returns the address of the management API for the user of an
// AMQP address, such as one with provision.AuditUser's rights.
func (e *Env) ManagementURL(t testing.TB, amqpURL string) string {
	t.Helper()
	u := parse(t, e.managementURL)
	u.User = parse(t, amqpURL).User
	return u.String()
}

func (e *Env) management(t testing.TB) *provision.Management {
	t.Helper()
	m, err := provision.NewManagement(e.managementURL)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func vhostName(t testing.TB, address string) string {
	t.Helper()
	return strings.TrimPrefix(parse(t, address).Path, "/")
}

// Manager looks at one vhost, and breaks things in it, through the management
// API. What it lists is sampled by the broker once a second: poll it with
// [Eventually], and take [QueueDepth] for the number of messages that wait.
type Manager struct {
	api   *provision.Management
	vhost string
}

// Management returns the Manager of a vhost on the shared pair, by the address
// that Vhost returned.
func Management(t testing.TB, vhostURL string) *Manager {
	t.Helper()
	return Shared(t).Management(t, vhostURL)
}

// Management is like the function Management, on this pair.
func (e *Env) Management(t testing.TB, vhostURL string) *Manager {
	t.Helper()
	return &Manager{api: e.management(t), vhost: vhostName(t, vhostURL)}
}

// Queue is what the broker says of a queue.
type Queue struct {
	Name      string
	Type      string
	Arguments map[string]any
	Consumers int
	Messages  int // ready and unacknowledged, and those that at-least-once dead-lettering holds
	Ready     int `json:"messages_ready"`
	Unacked   int `json:"messages_unacknowledged"`
}

// Queues lists the queues of the vhost by name.
func (m *Manager) Queues(ctx context.Context) (map[string]Queue, error) {
	var list []Queue
	if err := m.api.Do(ctx, http.MethodGet, provision.Path("queues", m.vhost), nil, &list); err != nil {
		return nil, err
	}
	queues := make(map[string]Queue, len(list))
	for _, q := range list {
		queues[q.Name] = q
	}
	return queues, nil
}

// Binding is one binding from an exchange to a queue.
type Binding struct {
	Source      string `json:"source"` // the exchange
	Destination string `json:"destination"`
	RoutingKey  string `json:"routing_key"`
	Properties  string `json:"properties_key"` // the binding's name in the API
}

// Bindings lists the bindings of the vhost but those of the default exchange,
// which every queue has.
func (m *Manager) Bindings(ctx context.Context) ([]Binding, error) {
	var list []Binding
	if err := m.api.Do(ctx, http.MethodGet, provision.Path("bindings", m.vhost), nil, &list); err != nil {
		return nil, err
	}
	bindings := list[:0]
	for _, b := range list {
		if b.Source != "" {
			bindings = append(bindings, b)
		}
	}
	return bindings, nil
}

// DeleteBinding deletes the binding of a queue to an exchange with this key.
func (m *Manager) DeleteBinding(ctx context.Context, exchange, queue, key string) error {
	bindings, err := m.Bindings(ctx)
	if err != nil {
		return err
	}
	for _, b := range bindings {
		if b.Source == exchange && b.Destination == queue && b.RoutingKey == key {
			return m.api.Do(ctx, http.MethodDelete, provision.Path("bindings", m.vhost, "e", exchange, "q", queue, b.Properties), nil, nil)
		}
	}
	return fmt.Errorf("no binding of %s to %s with key %s", queue, exchange, key)
}

// CloseConnections closes every connection to the vhost that the broker lists,
// and says how many. One that has just been opened may not be listed yet.
func (m *Manager) CloseConnections(ctx context.Context) (int, error) {
	var list []struct{ Name string }
	if err := m.api.Do(ctx, http.MethodGet, provision.Path("vhosts", m.vhost, "connections"), nil, &list); err != nil {
		return 0, err
	}
	closed := 0
	for _, c := range list {
		err := m.api.Do(ctx, http.MethodDelete, provision.Path("connections", c.Name), nil, nil)
		switch {
		case err == nil:
			closed++
		case !provision.NotFound(err): // gone by itself
			return closed, err
		}
	}
	return closed, nil
}

// SetRights changes what the user of an AMQP address may do in the vhost; it
// holds for new channels.
func (m *Manager) SetRights(ctx context.Context, amqpURL, configure, write, read string) error {
	u, err := url.Parse(amqpURL)
	if err != nil {
		return errors.New("address is no URL") // err would show the password
	}
	rights := map[string]string{"configure": configure, "write": write, "read": read}
	return m.api.Do(ctx, http.MethodPut, provision.Path("permissions", m.vhost, u.User.Username()), rights, nil)
}

// Do sends any other request of the management API; {vhost} in the path stands
// for the vhost.
func (m *Manager) Do(ctx context.Context, method, path string, in, out any) error {
	return m.api.Do(ctx, method, strings.ReplaceAll(path, "{vhost}", url.PathEscape(m.vhost)), in, out)
}

// Channel opens a connection and a channel on it, closed when the test ends.
func Channel(t testing.TB, amqpURL string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test may have broken it
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// QueueDepth asks a queue itself how many messages wait in it: exact, at once,
// without those that a consumer holds or at-least-once dead-lettering keeps.
func QueueDepth(amqpURL, queue string) (int, error) {
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return q.Messages, err
}
