package provision

import (
	"context"
	"fmt"
	"net/http"
)

// BrokerUser is a user of the broker and what it may do in one vhost: each
// right is a regular expression for names, "" for none.
type BrokerUser struct {
	Name, Password string
	Tags           string // such as "management"

	Configure, Write, Read string
}

// Service users may touch what carries their service's name, and read the
// exchange that the other service publishes to.

// OrderUser has the rights of the order service.
func OrderUser(name, password string) BrokerUser {
	const own = `^(orders\.events|order\..*)$`
	return BrokerUser{
		Name: name, Password: password,
		Configure: own, Write: own, Read: `^(order\..*|inventory\.events)$`,
	}
}

// InventoryUser has the rights of the inventory service.
func InventoryUser(name, password string) BrokerUser {
	const own = `^(inventory\..*)$`
	return BrokerUser{
		Name: name, Password: password,
		Configure: own, Write: own, Read: `^(inventory\..*|orders\.events)$`,
	}
}

// AuditUser may look at the vhost through the management API, and touch
// nothing in it.
func AuditUser(name, password string) BrokerUser {
	return BrokerUser{Name: name, Password: password, Tags: "monitoring"}
}

// Broker makes the vhost and the users, and sets passwords and rights to what
// is asked for.
func Broker(ctx context.Context, m *Management, vhost string, users ...BrokerUser) error {
	if err := m.Do(ctx, http.MethodPut, Path("vhosts", vhost), struct{}{}, nil); err != nil {
		return fmt.Errorf("make vhost %s: %w", vhost, err)
	}
	for _, u := range users {
		if u.Name == "" || u.Password == "" {
			return fmt.Errorf("broker user %q needs a name and a password", u.Name)
		}
		account := map[string]string{"password": u.Password, "tags": u.Tags}
		if err := m.Do(ctx, http.MethodPut, Path("users", u.Name), account, nil); err != nil {
			return fmt.Errorf("make broker user %s: %w", u.Name, err)
		}
		rights := map[string]string{"configure": u.Configure, "write": u.Write, "read": u.Read}
		if err := m.Do(ctx, http.MethodPut, Path("permissions", vhost, u.Name), rights, nil); err != nil {
			return fmt.Errorf("give broker user %s its rights: %w", u.Name, err)
		}
	}
	return nil
}
