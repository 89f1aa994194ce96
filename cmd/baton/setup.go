package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"example.com/baton/internal/stack"
)

func migrateCommand() *cobra.Command {
	var asJSON bool
	urls := make([]string, len(stack.Services))
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the databases to the schema of this program, as their owners",
		Long: `Bring the databases to the schema that this program was built with.

It connects as the owners of the databases; the services' own roles may not
change a schema. Several runs at once are safe. "baton up" migrates by itself.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var results []stack.Migrated
			for i, s := range stack.Services {
				url := cmp.Or(urls[i], os.Getenv(s.Env("_MIGRATE_URL")))
				if url == "" {
					continue
				}
				m, err := s.Migrate(cmd.Context(), url)
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
	for i, s := range stack.Services {
		// The default is not shown: it may hold a password.
		cmd.Flags().StringVar(&urls[i], s.Name, "", fmt.Sprintf("address of the %s database, as its owner ($%s)", s.Name, s.Env("_MIGRATE_URL")))
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func setupCommand() *cobra.Command {
	var asJSON bool
	d := stack.Deployment{Password: fromEnvironment}
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
				"BATON_ADMIN_DATABASE_URL": &d.DatabaseURL, "BATON_ADMIN_MANAGEMENT_URL": &d.ManagementURL,
			} {
				if *value == "" {
					var err error
					if *value, err = fromEnvironment(variable); err != nil {
						return err
					}
				}
			}
			results, err := d.Set(cmd.Context())
			if err != nil {
				return err
			}
			return reportMigrated(cmd, asJSON, results)
		},
	}
	cmd.Flags().StringVar(&d.DatabaseURL, "database", "", "address of the PostgreSQL server, as a superuser ($BATON_ADMIN_DATABASE_URL)")
	cmd.Flags().StringVar(&d.ManagementURL, "management", "", "address of RabbitMQ's management API, as an administrator ($BATON_ADMIN_MANAGEMENT_URL)")
	cmd.Flags().StringVar(&d.Vhost, "vhost", "/", "vhost of the broker")
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

func reportMigrated(cmd *cobra.Command, asJSON bool, results []stack.Migrated) error {
	var text []string
	for _, m := range results {
		text = append(text, m.String())
	}
	return report(cmd, asJSON, struct {
		Databases []stack.Migrated `json:"databases"`
	}{results}, strings.Join(text, "\n"))
}
