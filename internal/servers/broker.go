package servers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Broker is a private RabbitMQ node with the management plugin: listeners on
// 127.0.0.1 only, no guest user, one administrator with a random password.
type Broker struct {
	Server
	ctl      func(ctx context.Context, args ...string) (string, error)
	amqpPort int
	httpPort int
	password string
}

const brokerAdmin = "baton"

// NewBroker prepares a broker; nothing runs before Start.
func NewBroker(cfg Config) (*Broker, error) {
	cfg.Kind = cmp.Or(cfg.Kind, Local)
	cfg.Name = cmp.Or(cfg.Name, "rabbitmq")
	amqpPort, err := FreePort()
	if err != nil {
		return nil, err
	}
	httpPort, err := FreePort()
	if err != nil {
		return nil, err
	}
	password, err := cfg.Home.Secret(cfg.Name + " administrator")
	if err != nil {
		return nil, err
	}
	b := &Broker{amqpPort: amqpPort, httpPort: httpPort, password: password}
	run, err := b.runner(cfg)
	if err != nil {
		return nil, err
	}
	b.Server = newServer("RabbitMQ", minRabbitMQ, cfg, run, syscall.SIGTERM, b.ready)
	return b, nil
}

// advancedConfig is for what rabbitmq.conf has no key for: at-least-once
// dead-lettering sends again after 5 s instead of 3 minutes what the target
// queue did not confirm, and a quorum queue reports its length each second.
func advancedConfig(traced bool) string {
	vhosts := ""
	if traced {
		vhosts = `<<"/">>`
	}
	return `[{rabbit, [
  {dead_letter_worker_publisher_confirm_timeout, 5000},
  {quorum_tick_interval, 1000},
  {trace_vhosts, [` + vhosts + `]}
]}].
`
}

// brokerPlugins has the one that inventory's --queues needs, which comes with the
// server.
const brokerPlugins = "[rabbitmq_consistent_hash_exchange,rabbitmq_management].\n"

func brokerConfig(password, listeners string) string {
	return listeners + `default_user = ` + brokerAdmin + `
default_pass = ` + password + `
default_user_tags.administrator = true
collect_statistics_interval = 1000
`
}

func (b *Broker) runner(cfg Config) (runner, error) {
	if cfg.Kind == Docker {
		c := &container{
			name: "baton-" + cfg.Name + "-" + randomHex(4),
			create: []string{
				"--label", label(cfg.Home),
				"--hostname", "baton", // the node's name, and so where its data is
				"--publish", fmt.Sprintf("127.0.0.1:%d:5672", b.amqpPort),
				"--publish", fmt.Sprintf("127.0.0.1:%d:15672", b.httpPort),
				rabbitImage,
			},
			files: map[string]string{
				"/etc/rabbitmq/conf.d/90-baton.conf": brokerConfig(b.password, ""),
				"/etc/rabbitmq/advanced.config":      advancedConfig(cfg.Traced),
				"/etc/rabbitmq/enabled_plugins":      brokerPlugins,
			},
		}
		b.ctl = func(ctx context.Context, args ...string) (string, error) {
			return docker(ctx, append([]string{"exec", c.name, "rabbitmqctl"}, args...)...)
		}
		return c, nil
	}

	bin := rabbitBin()
	if bin == "" {
		return nil, errors.New("no RabbitMQ server programs on this machine")
	}
	acc, err := accountFor("rabbitmq")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cfg.Home.path, cfg.Name)
	distPort, err := FreePort()
	if err != nil {
		return nil, err
	}
	ctlPort, err := FreePort()
	if err != nil {
		return nil, err
	}
	epmdPort, err := FreePort()
	if err != nil {
		return nil, err
	}
	env := append(cfg.Home.Env(),
		"PATH="+bin+":"+os.Getenv("PATH"),
		"LANG=C.UTF-8",
		"HOME="+dir,           // the Erlang cookie
		"RABBITMQ_LOG=-color", // it goes to a file
		"ERL_EPMD_ADDRESS=127.0.0.1",
		fmt.Sprintf("ERL_EPMD_PORT=%d", epmdPort),
		"RABBITMQ_CONF_ENV_FILE=/dev/null", // the machine's own settings
		// The name is part of the data, so it stays; a private epmd makes it
		// unique enough.
		"RABBITMQ_NODENAME=baton@localhost",
		"RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+filepath.Join(dir, "advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(dir, "enabled_plugins"),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "data"),
		"RABBITMQ_LOG_BASE="+filepath.Join(dir, "log"),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", distPort),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		// rabbitmqctl listens too while it runs.
		"RABBITMQ_CTL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		fmt.Sprintf("RABBITMQ_CTL_DIST_PORT_MIN=%d", ctlPort),
		fmt.Sprintf("RABBITMQ_CTL_DIST_PORT_MAX=%d", ctlPort+20),
		// Makes the script become the Erlang VM, instead of a shell that
		// waits for it and would take our signals.
		"RUNNING_UNDER_SYSTEMD=true",
	)
	p := &brokerProcess{
		process: process{
			account:    acc,
			dir:        dir,
			env:        env,
			path:       filepath.Join(bin, "rabbitmq-server"),
			logFile:    filepath.Join(cfg.Home.path, cfg.Name+".log"),
			parentDied: syscall.SIGTERM,
		},
		files: map[string]string{
			"rabbitmq.conf": brokerConfig(b.password, fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d\nlog.console = true\nlog.file = false\n",
				b.amqpPort, b.httpPort)),
			"advanced.config": advancedConfig(cfg.Traced),
			"enabled_plugins": brokerPlugins,
		},
		data:     filepath.Join(dir, "data"),
		complete: filepath.Join(dir, "complete"),
		epmdAddr: fmt.Sprintf("127.0.0.1:%d", epmdPort),
	}
	p.epmd = process{
		account:    acc,
		dir:        dir,
		env:        env,
		path:       "epmd",
		args:       []string{"-port", strconv.Itoa(epmdPort), "-address", "127.0.0.1"},
		logFile:    p.logFile,
		parentDied: syscall.SIGKILL,
	}
	b.ctl = func(ctx context.Context, args ...string) (string, error) {
		return p.output(ctx, filepath.Join(bin, "rabbitmqctl"), args...)
	}
	return p, nil
}

// brokerProcess is a process with an epmd, Erlang's directory of node names,
// beside it. Erlang would start one itself, as a daemon that outlives it; one
// of our own can be ended.
type brokerProcess struct {
	process
	files    map[string]string
	data     string
	complete string // a file that says that data was made whole
	epmd     process
	epmdAddr string

	mu        sync.Mutex
	epmdEnded <-chan error // nil when it does not run
}

func (p *brokerProcess) prepare(ctx context.Context) error {
	if err := p.account.mkdir(p.dir); err != nil {
		return err
	}
	// A node whose very first start was cut short may never start again (seen
	// with 3.10: an empty file, and it ends at once). It holds nothing yet.
	if _, err := os.Stat(p.complete); errors.Is(err, fs.ErrNotExist) {
		if err := os.RemoveAll(p.data); err != nil {
			return err
		}
	}
	for name, content := range p.files {
		if err := p.account.write(filepath.Join(p.dir, name), content); err != nil {
			return err
		}
	}
	return p.startEpmd(ctx)
}

func (p *brokerProcess) started() error { return p.account.write(p.complete, "") }

func (p *brokerProcess) startEpmd(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epmdEnded != nil {
		select {
		case <-p.epmdEnded: // it died with the node, or was killed by somebody
			p.epmdEnded = nil
		default:
			return nil
		}
	}
	path, err := exec.LookPath(p.epmd.path)
	if err != nil {
		return err
	}
	p.epmd.path = path
	ended, err := p.epmd.launch(ctx)
	if err != nil {
		return fmt.Errorf("epmd: %w", err)
	}
	p.epmdEnded = ended
	for {
		conn, err := net.DialTimeout("tcp", p.epmdAddr, time.Second)
		if err == nil {
			return conn.Close()
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("epmd does not listen: %w", err)
		}
	}
}

func (p *brokerProcess) release(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epmdEnded == nil {
		return nil
	}
	if err := p.epmd.signal(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	<-p.epmdEnded
	p.epmdEnded = nil
	return nil
}

func (b *Broker) ready(ctx context.Context) (version string, err error) {
	conn, err := amqp.DialConfig(b.AMQPURL(brokerAdmin, b.password, "/"), amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return "", err
	}
	if err := conn.Close(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.ManagementAddr()+"/api/overview", nil)
	if err != nil {
		return "", err
	}
	req.SetBasicAuth(brokerAdmin, b.password)
	req.Close = true // no idle connection, and no goroutine, stays behind
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("management API: %s", resp.Status)
	}
	var overview struct {
		Version string `json:"rabbitmq_version"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&overview); err != nil {
		return "", fmt.Errorf("management API: %w", err)
	}
	return overview.Version, nil
}

// Restart stops the whole node in order and starts it again on the same ports.
// It returns when the broker accepts clients.
func (b *Broker) Restart(ctx context.Context) error {
	if err := b.end(ctx, b.quit); err != nil {
		return err
	}
	return b.Start(ctx)
}

// AdminURL is the AMQP address of a vhost, as the administrator. It holds the
// password.
func (b *Broker) AdminURL(vhost string) string {
	return b.AMQPURL(brokerAdmin, b.password, vhost)
}

// AMQPURL is the AMQP address of a vhost for another user. It holds the
// password.
func (b *Broker) AMQPURL(user, password, vhost string) string {
	return amqpURL(b.Addr(), user, password, vhost)
}

func amqpURL(addr, user, password, vhost string) string {
	// A vhost is one path segment, and "/" is the name of the usual one.
	return "amqp://" + url.UserPassword(user, password).String() + "@" + addr + "/" + url.PathEscape(vhost)
}

// ManagementURL is the address of the management API, as the administrator. It
// holds the password.
func (b *Broker) ManagementURL() string {
	return b.ManagementURLFor(brokerAdmin, b.password)
}

// ManagementURLFor is the address of the management API for another user. It
// holds the password.
func (b *Broker) ManagementURLFor(user, password string) string {
	u := url.URL{Scheme: "http", User: url.UserPassword(user, password), Host: b.ManagementAddr()}
	return u.String()
}

// ManagementAddr is host and port of the management API.
func (b *Broker) ManagementAddr() string { return "127.0.0.1:" + strconv.Itoa(b.httpPort) }

// Addr is host and port of AMQP, for a proxy in front of the broker.
func (b *Broker) Addr() string { return "127.0.0.1:" + strconv.Itoa(b.amqpPort) }

// Ctl runs rabbitmqctl on the node, which takes one to two seconds, and
// returns what it printed.
func (b *Broker) Ctl(ctx context.Context, args ...string) (string, error) {
	return b.ctl(ctx, args...)
}
