package provision

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Database is one service's database with its two roles.
type Database struct {
	Name string

	// Owner owns the database and runs migrations.
	Owner, OwnerPassword string

	// Service may select, insert, update and delete in the tables that Owner
	// makes in schema public, and use its sequences. It may create nothing.
	Service, ServicePassword string
}

// Databases makes the databases and roles, and sets passwords and rights to
// what is asked for. adminURL is the address of any database of the server, as
// a superuser.
func Databases(ctx context.Context, adminURL string, databases ...Database) error {
	admin, err := pgx.Connect(ctx, adminURL)
	if err != nil {
		return fmt.Errorf("connect as database administrator: %w", err)
	}
	defer admin.Close(context.WithoutCancel(ctx))
	// Two set-ups at once would both find that a role is missing. The lock
	// ends with the connection.
	const lock = `select pg_advisory_lock(hashtextextended('baton set-up', 0))`
	if _, err := admin.Exec(ctx, lock); err != nil {
		return err
	}
	for _, d := range databases {
		if err := d.provision(ctx, admin); err != nil {
			return fmt.Errorf("set up database %s: %w", d.Name, err)
		}
	}
	return nil
}

func (d Database) provision(ctx context.Context, admin *pgx.Conn) error {
	for role, password := range map[string]string{d.Owner: d.OwnerPassword, d.Service: d.ServicePassword} {
		if err := provisionRole(ctx, admin, role, password); err != nil {
			return err
		}
	}

	name, owner, service := quote(d.Name), quote(d.Owner), quote(d.Service)
	_, err := admin.Exec(ctx, `create database `+name+` owner `+owner)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == "42P04": // it exists
	case err != nil:
		return err
	}
	for _, statement := range []string{
		`revoke all on database ` + name + ` from public`,
		`grant connect on database ` + name + ` to ` + service,
	} {
		if _, err := admin.Exec(ctx, statement); err != nil {
			return err
		}
	}

	// Rights inside a database can only be given from inside it.
	config := admin.Config().Copy()
	config.Database = d.Name
	inside, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer inside.Close(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, inside, func(tx pgx.Tx) error {
		for _, statement := range []string{
			`alter schema public owner to ` + owner,
			`revoke all on schema public from public`,
			`grant usage on schema public to ` + service,
			`alter default privileges for role ` + owner + ` in schema public grant select, insert, update, delete on tables to ` + service,
			`alter default privileges for role ` + owner + ` in schema public grant usage on sequences to ` + service,
		} {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

func provisionRole(ctx context.Context, admin *pgx.Conn, role, password string) error {
	if role == "" || password == "" {
		return fmt.Errorf("role %q needs a name and a password", role)
	}
	var exists bool
	const find = `select exists (select from pg_roles where rolname = $1)`
	if err := admin.QueryRow(ctx, find, role).Scan(&exists); err != nil {
		return err
	}
	verb := `create`
	if exists {
		verb = `alter`
	}
	verifier, err := scramVerifier(password)
	if err != nil {
		return err
	}
	// The verifier, since a statement with the password in it may end up in
	// the server's log. It has no quotes in it.
	_, err = admin.Exec(ctx, verb+` role `+quote(role)+` login password '`+verifier+`'`)
	return err
}

// scramVerifier is what PostgreSQL keeps of a password (RFC 5803).
func scramVerifier(password string) (string, error) {
	const iterations = 4096 // as the server itself takes
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	mac := func(text string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(mac("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, encode(salt), encode(stored[:]), encode(mac("Server Key"))), nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// URLFor is base with another user and database, for use by that user. It
// holds the password.
func URLFor(base, user, password, database string) (string, error) {
	u, err := url.Parse(base)
	if err != nil {
		return "", errors.New("database address is no URL") // err would show the password
	}
	u.User = url.UserPassword(user, password)
	u.Path = "/" + database
	return u.String(), nil
}

// DatabaseURL is base for another database, as the same user.
func DatabaseURL(base, database string) (string, error) {
	u, err := url.Parse(base)
	if err != nil {
		return "", errors.New("database address is no URL") // err would show the password
	}
	u.Path = "/" + database
	return u.String(), nil
}
