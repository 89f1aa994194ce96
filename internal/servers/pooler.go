package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pooler is a private PgBouncer in front of a PostgreSQL. It hands out server
// connections by transaction, two for each pair of user and database. It is a
// process of this machine, whatever kind the PostgreSQL is.
type Pooler struct {
	Server
	port int
}

// poolSize is how many server connections a user has to a database.
const poolSize = 2

// NewPooler prepares a pooler in front of the server that adminURL leads to, as
// a superuser; nothing runs before Start. It lets in whom the server lets in.
func NewPooler(cfg Config, adminURL string) (*Pooler, error) {
	cfg.Name = cmp.Or(cfg.Name, "pgbouncer")
	path := poolerPath()
	if path == "" {
		return nil, errors.New("no PgBouncer on this machine")
	}
	admin, err := pgx.ParseConfig(adminURL)
	if err != nil {
		return nil, errors.New("the server behind the pooler: not a PostgreSQL URL") // err would show the password
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	acc, err := accountFor("postgres") // it does not run as root either
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cfg.Home.path, cfg.Name)
	settings, passwords := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users.txt")
	run := &poolerProcess{
		process: process{
			account:    acc,
			dir:        dir,
			env:        cfg.Home.Env(),
			path:       path,
			args:       []string{settings},
			logFile:    filepath.Join(cfg.Home.path, cfg.Name+".log"),
			parentDied: syscall.SIGINT,
		},
		files: map[string]string{
			// The administrator asks the server for the passwords of all others.
			passwords: fmt.Sprintf("%q %q\n", admin.User, admin.Password),
			settings: fmt.Sprintf(`[databases]
* = host=%s port=%d auth_user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
default_pool_size = %d
`, admin.Host, admin.Port, admin.User, port, passwords, poolSize),
		},
	}
	p := &Pooler{port: port}
	probe := p.Before(adminURL)
	p.Server = newServer("PgBouncer", "", cfg, run, syscall.SIGINT, func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, probe)
		if err != nil {
			return "", err
		}
		return "", conn.Close(ctx)
	})
	return p, nil
}

// Before is the address of what address leads to, by way of the pooler, with
// the same user and settings.
func (p *Pooler) Before(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic("the address of a database is no URL") // err would show the password
	}
	u.Host = "127.0.0.1:" + strconv.Itoa(p.port)
	return u.String()
}

// poolerProcess is a process with its configuration written first.
type poolerProcess struct {
	process
	files map[string]string
}

func (p *poolerProcess) prepare(context.Context) error {
	if err := p.account.mkdir(p.dir); err != nil {
		return err
	}
	for name, content := range p.files {
		if err := p.account.write(name, content); err != nil {
			return err
		}
	}
	return nil
}

// poolerPath is where PgBouncer is, or "". PATH of an ordinary user lacks the
// folder in which Debian has it.
func poolerPath() string {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path
	}
	if debian := "/usr/sbin/pgbouncer"; executable(debian) {
		return debian
	}
	return ""
}
