package stack

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"example.com/baton/internal/provision"
	"example.com/baton/migrations/inventory"
	"example.com/baton/migrations/order"
)

// Service is what set-up has to know of one service.
type Service struct {
	Name       string // of its program too
	Database   string
	Migrations fs.FS
	user       func(name, password string) provision.BrokerUser
}

// The services.
var (
	Order     = Service{Name: "order", Database: "orders", Migrations: order.FS, user: provision.OrderUser}
	Inventory = Service{Name: "inventory", Database: "inventory", Migrations: inventory.FS, user: provision.InventoryUser}

	Services = []Service{Order, Inventory}
)

// Env is the environment variable of the service that ends in suffix.
func (s Service) Env(suffix string) string { return strings.ToUpper(s.Name) + suffix }

func (s Service) role() string { return s.Name + "_service" }

// The variables that hold passwords, here and in compose.
const (
	ownerPassword    = "_OWNER_PASSWORD"
	databasePassword = "_DATABASE_PASSWORD"
	amqpPassword     = "_AMQP_PASSWORD"
	auditPassword    = "BATON_AUDIT_PASSWORD"
)

const auditUser = "audit"

// Deployment is servers to set up, and the passwords to set.
type Deployment struct {
	DatabaseURL   string // superuser
	ManagementURL string // administrator
	Vhost         string
	// Password returns the password that goes by the name of this variable:
	// BATON_AUDIT_PASSWORD and, with ORDER_ and INVENTORY_ in front,
	// OWNER_PASSWORD, DATABASE_PASSWORD and AMQP_PASSWORD.
	Password func(variable string) (string, error)
}

// Set makes databases, roles, broker users and rights, and migrates. It may be
// done again at any time: passwords and rights become what is asked for.
func (d Deployment) Set(ctx context.Context) ([]Migrated, error) {
	var databases []provision.Database
	var users []provision.BrokerUser
	for _, s := range Services {
		var passwords [3]string
		for i, suffix := range []string{ownerPassword, databasePassword, amqpPassword} {
			var err error
			if passwords[i], err = d.Password(s.Env(suffix)); err != nil {
				return nil, err
			}
		}
		databases = append(databases, provision.Database{
			Name:  s.Database,
			Owner: s.Name + "_owner", OwnerPassword: passwords[0],
			Service: s.role(), ServicePassword: passwords[1],
		})
		users = append(users, s.user(s.Name, passwords[2]))
	}
	audit, err := d.Password(auditPassword)
	if err != nil {
		return nil, err
	}
	users = append(users, provision.AuditUser(auditUser, audit))

	management, err := provision.NewManagement(d.ManagementURL)
	if err != nil {
		return nil, err
	}
	if err := provision.Databases(ctx, d.DatabaseURL, databases...); err != nil {
		return nil, err
	}
	if err := provision.Broker(ctx, management, d.Vhost, users...); err != nil {
		return nil, err
	}
	var results []Migrated
	for i, s := range Services {
		db := databases[i]
		url, err := provision.URLFor(d.DatabaseURL, db.Owner, db.OwnerPassword, db.Name)
		if err != nil {
			return nil, err
		}
		m, err := s.Migrate(ctx, url)
		if err != nil {
			return nil, err
		}
		results = append(results, m)
	}
	return results, nil
}

// Migrated is what one migration run did.
type Migrated struct {
	Service string   `json:"service"`
	Version int64    `json:"version"`
	Applied []string `json:"applied"`
}

func (m Migrated) String() string {
	if len(m.Applied) == 0 {
		return fmt.Sprintf("%s: schema version %d, nothing to do", m.Service, m.Version)
	}
	return fmt.Sprintf("%s: schema version %d, applied %s", m.Service, m.Version, strings.Join(m.Applied, ", "))
}

// Migrate brings the service's database at url, whose user owns it, to the
// schema of this program.
func (s Service) Migrate(ctx context.Context, url string) (Migrated, error) {
	applied, err := provision.Migrate(ctx, url, s.Migrations)
	if err != nil {
		return Migrated{}, err
	}
	version, err := provision.SchemaVersion(s.Migrations)
	return Migrated{Service: s.Name, Version: version, Applied: append([]string{}, applied...)}, err
}
