package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"example.com/baton/internal/provision"
	"example.com/baton/migrations/inventory"
	"example.com/baton/migrations/order"
)

// service is what set-up has to know of one service.
type service struct {
	name       string
	database   string
	migrations fs.FS
	user       func(name, password string) provision.BrokerUser
}

var services = []service{
	{name: "order", database: "orders", migrations: order.FS, user: provision.OrderUser},
	{name: "inventory", database: "inventory", migrations: inventory.FS, user: provision.InventoryUser},
}

func (s service) env(suffix string) string { return strings.ToUpper(s.name) + suffix }

// deployment is the servers to set up and the passwords to set.
type deployment struct {
	databaseURL   string // superuser
	managementURL string // administrator
	vhost         string
	password      func(variable string) (string, error)
}

// The variables that hold passwords, here and in compose.
const (
	ownerPassword    = "_OWNER_PASSWORD"
	databasePassword = "_DATABASE_PASSWORD"
	amqpPassword     = "_AMQP_PASSWORD"
	auditPassword    = "BATON_AUDIT_PASSWORD"
)

// set makes databases, roles, broker users and rights, and migrates.
func (d deployment) set(ctx context.Context) ([]migrated, error) {
	var databases []provision.Database
	var users []provision.BrokerUser
	for _, s := range services {
		var passwords [3]string
		for i, suffix := range []string{ownerPassword, databasePassword, amqpPassword} {
			var err error
			if passwords[i], err = d.password(s.env(suffix)); err != nil {
				return nil, err
			}
		}
		databases = append(databases, provision.Database{
			Name:  s.database,
			Owner: s.name + "_owner", OwnerPassword: passwords[0],
			Service: s.name + "_service", ServicePassword: passwords[1],
		})
		users = append(users, s.user(s.name, passwords[2]))
	}
	audit, err := d.password(auditPassword)
	if err != nil {
		return nil, err
	}
	users = append(users, provision.AuditUser("audit", audit))

	management, err := provision.NewManagement(d.managementURL)
	if err != nil {
		return nil, err
	}
	if err := provision.Databases(ctx, d.databaseURL, databases...); err != nil {
		return nil, err
	}
	if err := provision.Broker(ctx, management, d.vhost, users...); err != nil {
		return nil, err
	}
	var results []migrated
	for i, s := range services {
		db := databases[i]
		url, err := provision.URLFor(d.databaseURL, db.Owner, db.OwnerPassword, db.Name)
		if err != nil {
			return nil, err
		}
		m, err := migrate(ctx, s, url)
		if err != nil {
			return nil, err
		}
		results = append(results, m)
	}
	return results, nil
}

// migrated is what one migration run did.
type migrated struct {
	Service string   `json:"service"`
	Version int64    `json:"version"`
	Applied []string `json:"applied"`
}

func (m migrated) String() string {
	if len(m.Applied) == 0 {
		return fmt.Sprintf("%s: schema version %d, nothing to do", m.Service, m.Version)
	}
	return fmt.Sprintf("%s: schema version %d, applied %s", m.Service, m.Version, strings.Join(m.Applied, ", "))
}

func migrate(ctx context.Context, s service, url string) (migrated, error) {
	applied, err := provision.Migrate(ctx, url, s.migrations)
	if err != nil {
		return migrated{}, err
	}
	version, err := provision.SchemaVersion(s.migrations)
	return migrated{Service: s.name, Version: version, Applied: append([]string{}, applied...)}, err
}

func migrateCommand() *cobra.Command {
	var asJSON bool
	urls := make([]string, len(services))
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the databases to the schema of this program, as their owners",
		Long: `Bring the databases to the schema that this program was built with.

It connects as the owners of the databases; the services' own roles may not
change a schema. Several runs at once are safe. "baton up" migrates by itself.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var results []migrated
			for i, s := range services {
				url := cmp.Or(urls[i], os.Getenv(s.env("_MIGRATE_URL")))
				if url == "" {
					continue
				}
				m, err := migrate(cmd.Context(), s, url)
				if err != nil {
					return err
				}
				results = append(results, m)
			}
			if len(results) == 0 {
				return errors.New("no database to migrate: set ORDER_MIGRATE_URL and INVENTORY_MIGRATE_URL (\"baton up\" migrates its own)")
			}
			return reportMigrated(cmd, asJSON, results)
		},
	}
	for i, s := range services {
		// The default is not shown: it may hold a password.
		cmd.Flags().StringVar(&urls[i], s.name, "", fmt.Sprintf("address of the %s database, as its owner ($%s)", s.name, s.env("_MIGRATE_URL")))
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func setupCommand() *cobra.Command {
	var asJSON bool
	d := deployment{password: fromEnvironment}
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Make databases, roles, broker users and rights, and migrate",
		Long: `Make the databases and roles, the broker's users and rights, and migrate.

It may be run again at any time: passwords and rights are set to what is asked
for. Passwords are taken from the environment: BATON_AUDIT_PASSWORD and, with
ORDER_ and INVENTORY_ in front, OWNER_PASSWORD, DATABASE_PASSWORD and
AMQP_PASSWORD.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for variable, value := range map[string]*string{
				"BATON_ADMIN_DATABASE_URL": &d.databaseURL, "BATON_ADMIN_MANAGEMENT_URL": &d.managementURL,
			} {
				if *value == "" {
					var err error
					if *value, err = fromEnvironment(variable); err != nil {
						return err
					}
				}
			}
			results, err := d.set(cmd.Context())
			if err != nil {
				return err
			}
			return reportMigrated(cmd, asJSON, results)
		},
	}
	cmd.Flags().StringVar(&d.databaseURL, "database", "", "address of the PostgreSQL server, as a superuser ($BATON_ADMIN_DATABASE_URL)")
	cmd.Flags().StringVar(&d.managementURL, "management", "", "address of RabbitMQ's management API, as an administrator ($BATON_ADMIN_MANAGEMENT_URL)")
	cmd.Flags().StringVar(&d.vhost, "vhost", "/", "vhost of the broker")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func fromEnvironment(variable string) (string, error) {
	value := os.Getenv(variable)
	if value == "" {
		return "", fmt.Errorf("$%s is not set", variable)
	}
	return value, nil
}

func reportMigrated(cmd *cobra.Command, asJSON bool, results []migrated) error {
	var text []string
	for _, m := range results {
		text = append(text, m.String())
	}
	return report(cmd, asJSON, struct {
		Databases []migrated `json:"databases"`
	}{results}, strings.Join(text, "\n"))
}
