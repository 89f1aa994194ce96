// Package servers starts, stops, kills and restarts private PostgreSQL and
// RabbitMQ servers, as processes of this machine or as Docker containers.
//
// Private means: own data, own ports on 127.0.0.1, own Erlang node name and
// epmd. A PostgreSQL or RabbitMQ that the machine runs already is never touched.
//
//	home, err := servers.TempHome(clone)
//	defer home.Close()
//	pg, err := servers.NewPostgres(servers.Config{Home: home, Kind: servers.Local})
//	err = pg.Start(ctx)
//	defer pg.Stop(ctx)
package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Kind says how a server runs.
type Kind string

const (
	Local  Kind = "local"  // a process of this machine
	Docker Kind = "docker" // a container of the local Docker engine
)

// ParseKind reads a Kind from a flag or the environment.
func ParseKind(s string) (Kind, error) {
	switch k := Kind(s); k {
	case Local, Docker:
		return k, nil
	}
	return "", fmt.Errorf("kind of servers is %q, want local or docker", s)
}

// Config is what both servers need to know.
type Config struct {
	// Kind is how the server runs. Defaults to Local.
	Kind Kind

	// Home keeps data, passwords and logs. Required.
	Home *Home

	// Name tells several servers of one kind in one Home apart.
	// Defaults to "postgres" or "rabbitmq".
	Name string

	// Traced makes a broker trace its vhost / from its start on, so that a tap
	// misses nothing after a restart; see package check. It costs every message a
	// second one.
	Traced bool

	// Progress receives one line for each thing that takes time.
	// Nil is silence.
	Progress func(line string)
}

func (c Config) say(format string, args ...any) {
	if c.Progress != nil {
		c.Progress(fmt.Sprintf(format, args...))
	}
}

// Pair is one PostgreSQL and one RabbitMQ.
type Pair struct {
	Postgres *Postgres
	Broker   *Broker
}

// NewPair prepares a pair with the default names; nothing runs yet.
func NewPair(cfg Config) (*Pair, error) {
	pg, err := NewPostgres(cfg)
	if err != nil {
		return nil, err
	}
	broker, err := NewBroker(cfg)
	if err != nil {
		return nil, err
	}
	return &Pair{Postgres: pg, Broker: broker}, nil
}

// Start starts both at once and returns when both are ready. If one fails, the
// other is stopped again.
func (p *Pair) Start(ctx context.Context) error {
	g, startCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.Postgres.Start(startCtx) })
	g.Go(func() error { return p.Broker.Start(startCtx) })
	err := g.Wait()
	if err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		defer cancel()
		_ = p.Stop(stopCtx) // the first error is the one to tell
	}
	return err
}

// Stop stops both at once.
func (p *Pair) Stop(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return p.Postgres.Stop(ctx) })
	g.Go(func() error { return p.Broker.Stop(ctx) })
	return g.Wait()
}

// The environment in which go test finds the servers that tests share.
const (
	TestDatabaseVar   = "BATON_TEST_DATABASE_URL"   // superuser, database postgres
	TestAMQPVar       = "BATON_TEST_AMQP_URL"       // administrator, vhost /
	TestManagementVar = "BATON_TEST_MANAGEMENT_URL" // administrator
	TestServersVar    = "BATON_TEST_SERVERS"        // the Kind that tests start servers of their own as
)

// TestEnv is that environment for this pair.
func (p *Pair) TestEnv() []string {
	return []string{
		TestDatabaseVar + "=" + p.Postgres.URL("postgres"),
		TestAMQPVar + "=" + p.Broker.AdminURL("/"),
		TestManagementVar + "=" + p.Broker.ManagementURL(),
		TestServersVar + "=" + string(p.Postgres.cfg.Kind),
	}
}

const stopPatience = 30 * time.Second

// DockerAnswers reports whether a Docker engine answers here.
func DockerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "info").Run() == nil
}

// account is the user a server of this machine runs as.
type account struct {
	uid, gid int
	self     bool // the user we are: nothing to change
}

// accountFor is the package's own user when we are root, since PostgreSQL
// refuses to run as root; otherwise it is us.
func accountFor(name string) (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid(), self: true}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, fmt.Errorf("run a server as its package's user: %w", err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return account{}, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return account{}, err
	}
	return account{uid: uid, gid: gid}, nil
}

// mkdir makes a directory that only the account can read.
func (a account) mkdir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if a.self {
		return nil
	}
	return os.Chown(dir, a.uid, a.gid)
}

// write makes a file that only the account can read.
func (a account) write(path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	if a.self {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// The oldest versions that Baton supports, and is tested with.
const (
	minPostgres = "15"
	minRabbitMQ = "3.10"
)

// postgresBin is the folder of the newest PostgreSQL server programs here, or
// "". PATH comes last since Debian leaves initdb and postgres out of it.
func postgresBin() string {
	var dirs []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
		"/usr/pgsql-*/bin",                   // PGDG on Red Hat
		"/opt/homebrew/opt/postgresql@*/bin", // macOS
		"/usr/local/opt/postgresql@*/bin",    // macOS, Intel
	} {
		found, _ := filepath.Glob(pattern) // the only error is a bad pattern
		dirs = append(dirs, found...)
	}
	slices.SortFunc(dirs, func(a, b string) int { return compareVersions(digits(b), digits(a)) })
	if p, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(p))
	}
	for _, d := range dirs {
		if executable(filepath.Join(d, "postgres")) && executable(filepath.Join(d, "initdb")) {
			return d
		}
	}
	return ""
}

// rabbitBin is the folder with RabbitMQ's own scripts, or "". It is the one
// behind /usr/sbin/rabbitmq-server: Debian's wrapper there changes user and
// environment, which we do ourselves.
func rabbitBin() string {
	var dirs []string
	for _, pattern := range []string{
		"/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",
		"/opt/homebrew/opt/rabbitmq/sbin",
		"/usr/local/opt/rabbitmq/sbin",
	} {
		found, _ := filepath.Glob(pattern)
		dirs = append(dirs, found...)
	}
	slices.SortFunc(dirs, func(a, b string) int { return compareVersions(digits(b), digits(a)) })
	if p, err := exec.LookPath("rabbitmq-server"); err == nil && len(dirs) == 0 {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, d := range dirs {
		if executable(filepath.Join(d, "rabbitmq-server")) && executable(filepath.Join(d, "rabbitmqctl")) {
			return d
		}
	}
	return ""
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// digits keeps the version in a path: "/usr/lib/postgresql/15/bin" -> "15".
func digits(path string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r == '.' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, path), ".")
}

// compareVersions orders dotted numbers, so that 3.9 is before 3.10.
func compareVersions(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var x, y int
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return x - y
		}
	}
	return 0
}
