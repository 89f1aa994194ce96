package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Postgres is a private PostgreSQL: TCP on 127.0.0.1 only, SCRAM passwords,
// fsync on, UTF-8 with the C.UTF-8 locale.
type Postgres struct {
	Server
	port     int
	password string
}

const superuser = "postgres"

// RestartMode is how PostgreSQL goes down for a restart.
type RestartMode int

const (
	Fast      RestartMode = iota // transactions are rolled back, then it shuts down
	Immediate                    // as a crash: it recovers from its log when it starts
)

// NewPostgres prepares a server; nothing runs before Start.
func NewPostgres(cfg Config) (*Postgres, error) {
	cfg.Kind = cmp.Or(cfg.Kind, Local)
	cfg.Name = cmp.Or(cfg.Name, "postgres")
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	password, err := cfg.Home.Secret(cfg.Name + " superuser")
	if err != nil {
		return nil, err
	}
	run, err := postgresRunner(cfg, port, password)
	if err != nil {
		return nil, err
	}
	p := &Postgres{port: port, password: password}
	p.Server = newServer("PostgreSQL", minPostgres, cfg, run, syscall.SIGINT, p.ready)
	return p, nil
}

// settings apart from where to listen, for both kinds of servers. The test
// suite runs many pools at once.
var postgresSettings = []string{"-c", "max_connections=400", "-c", "fsync=on"}

func postgresRunner(cfg Config, port int, password string) (runner, error) {
	if cfg.Kind == Docker {
		return &container{
			name: "baton-" + cfg.Name + "-" + randomHex(4),
			create: append([]string{
				"--label", label(cfg.Home),
				"--publish", fmt.Sprintf("127.0.0.1:%d:5432", port),
				"--env", "POSTGRES_PASSWORD",
				"--env", "POSTGRES_INITDB_ARGS=--locale=C.UTF-8",
				"--shm-size", "256m",
				postgresImage, "postgres",
			}, postgresSettings...),
			env: []string{"POSTGRES_PASSWORD=" + password},
		}, nil
	}

	bin := postgresBin()
	if bin == "" {
		return nil, errors.New("no PostgreSQL server programs on this machine")
	}
	acc, err := accountFor("postgres")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cfg.Home.path, cfg.Name)
	data := filepath.Join(dir, "data")
	return &postgresProcess{
		process: process{
			account: acc,
			dir:     dir,
			env:     append(cfg.Home.Env(), "PATH="+bin+":"+os.Getenv("PATH"), "LC_ALL=C.UTF-8", "HOME="+dir),
			path:    filepath.Join(bin, "postgres"),
			args: append([]string{
				"-D", data,
				"-c", "listen_addresses=127.0.0.1",
				"-c", "port=" + strconv.Itoa(port),
				"-c", "unix_socket_directories=",
			}, postgresSettings...),
			logFile:    filepath.Join(cfg.Home.path, cfg.Name+".log"),
			parentDied: syscall.SIGINT,
		},
		initdb:   filepath.Join(bin, "initdb"),
		data:     data,
		password: password,
	}, nil
}

// postgresProcess is a process with an empty database made first.
type postgresProcess struct {
	process
	initdb   string
	data     string
	password string
}

func (p *postgresProcess) prepare(ctx context.Context) error {
	if _, err := os.Stat(p.data); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.account.mkdir(p.dir); err != nil {
		return err
	}
	passwordFile := filepath.Join(p.dir, "password")
	if err := p.account.write(passwordFile, p.password+"\n"); err != nil {
		return err
	}
	defer os.Remove(passwordFile)
	// Made under another name, so that what an interrupted initdb leaves is not
	// taken for a database.
	fresh := p.data + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if _, err := p.output(ctx, p.initdb, "-D", fresh, "--username", superuser, "--pwfile", passwordFile,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8"); err != nil {
		return err
	}
	return os.Rename(fresh, p.data)
}

func (p *Postgres) ready(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	const showVersion = `select split_part(current_setting('server_version'), ' ', 1)`
	var version string
	err = conn.QueryRow(ctx, showVersion).Scan(&version)
	return version, err
}

// Restart takes the server down in the given way and starts it again on the
// same port. It returns when the server accepts queries.
func (p *Postgres) Restart(ctx context.Context, mode RestartMode) error {
	sig := syscall.SIGINT
	if mode == Immediate {
		sig = syscall.SIGQUIT
	}
	if err := p.end(ctx, sig); err != nil {
		return err
	}
	return p.Start(ctx)
}

// URL is the address of a database, as the superuser. It holds the password.
func (p *Postgres) URL(database string) string {
	return p.URLFor(superuser, p.password, database)
}

// URLFor is the address of a database for another user. It holds the password.
func (p *Postgres) URLFor(user, password, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(user, password),
		Host:     p.Addr(),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Addr is host and port, for a proxy in front of the server.
func (p *Postgres) Addr() string { return "127.0.0.1:" + strconv.Itoa(p.port) }
