package order

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config is everything the order service can be told. DatabaseURL and AMQPURL
// are required; every other field has a usable zero value.
type Config struct {
	// HTTPAddr is where the API listens. Defaults to 127.0.0.1:8080.
	HTTPAddr string
	// Listener, when set, is used in place of HTTPAddr.
	Listener net.Listener

	// DatabaseURL is the database with the schema of migrations/order. Without
	// pool_max_conns in it, up to 16 connections are kept. Unless it says
	// otherwise, lock_timeout is 5 s, statement_timeout and
	// idle_in_transaction_session_timeout are 15 s, plan_cache_mode is
	// force_generic_plan, enable_seqscan and jit are off; one that is set to nothing
	// ("lock_timeout=") is left to the server. A pooler that hands out
	// connections by transaction needs that for the three timeouts, and
	// default_query_exec_mode=exec, with which the other three are not set.
	DatabaseURL string
	// AMQPURL is the broker and the vhost.
	AMQPURL string
	// ManagementURL is the management API of the broker, with a user that may
	// look at bindings. Without it they are not checked.
	ManagementURL string

	// AuditEvery is the pause between two looks at the bindings. Defaults to 30
	// seconds.
	AuditEvery time.Duration

	// QueueType is "quorum" or "classic". Defaults to quorum.
	QueueType string
	// RetryTTL is how long a failed answer of inventory waits for its next
	// attempt. Defaults to 2 seconds.
	RetryTTL time.Duration
	// Batch is how many answers of inventory one transaction takes at most, and
	// Prefetch how many the broker hands over in advance. They default to 250
	// and 500.
	Batch, Prefetch int
	// Lease is how long the relay's claim of an event keeps other relays away.
	// Defaults to 30 seconds.
	Lease time.Duration
	// Poll is how often the relay looks for events that nobody woke it for: those
	// of other processes, and those whose time to be sent again has come.
	// Defaults to 1 second.
	Poll time.Duration
	// Ordered makes the events of an order leave one at a time, in sequence; see
	// [outbox.Relay].
	Ordered bool

	// NumberBlock is how many order numbers are taken from the database at once.
	// Those left when the process ends are never used. Defaults to 100.
	NumberBlock int
	// RequestTimeout bounds the work for one request once it is read, the wait
	// for a connection included. Defaults to 5 seconds.
	RequestTimeout time.Duration

	// MaxEventAge is the age from which on an event is neither sent nor applied,
	// because its id may have been forgotten. Defaults to 7 days.
	MaxEventAge time.Duration
	// InboxKeep is for how long ids of applied answers are remembered. It must
	// cover MaxEventAge, ReplayWindow (how long after that people may put dead
	// letters back) and BackupAge (of the oldest backup that may be restored),
	// or Run refuses to start. Defaults to 30 days; the others to 7 days each.
	InboxKeep, ReplayWindow, BackupAge time.Duration
	// OutboxKeep is for how long published events are kept to be looked at, and
	// KeyKeep for how long an Idempotency-Key is remembered. They default to 7
	// days each.
	OutboxKeep, KeyKeep time.Duration
	// PruneEvery is the pause between removals of what is kept no longer.
	// Defaults to 1 minute.
	PruneEvery time.Duration

	// Faults lets callers on this machine crash, stop and delay the service over
	// HTTP. It is refused on an address that others can reach.
	Faults bool
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// withDefaults returns c with its defaults filled in, or an error of one line
// that names the setting and never its value if that may hold a password.
func (c Config) withDefaults() (Config, error) {
	const day = 24 * time.Hour
	c.HTTPAddr = cmp.Or(c.HTTPAddr, "127.0.0.1:8080")
	if c.Listener != nil {
		c.HTTPAddr = c.Listener.Addr().String()
	}
	c.AuditEvery = cmp.Or(c.AuditEvery, 30*time.Second)
	c.QueueType = cmp.Or(c.QueueType, "quorum")
	c.RetryTTL = cmp.Or(c.RetryTTL, 2*time.Second)
	c.Batch, c.Prefetch = cmp.Or(c.Batch, 250), cmp.Or(c.Prefetch, 500)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.Poll = cmp.Or(c.Poll, time.Second)
	c.NumberBlock = cmp.Or(c.NumberBlock, 100)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 5*time.Second)
	c.MaxEventAge = cmp.Or(c.MaxEventAge, 7*day)
	c.ReplayWindow = cmp.Or(c.ReplayWindow, 7*day)
	c.BackupAge = cmp.Or(c.BackupAge, 7*day)
	c.InboxKeep = cmp.Or(c.InboxKeep, 30*day)
	c.OutboxKeep = cmp.Or(c.OutboxKeep, 7*day)
	c.KeyKeep = cmp.Or(c.KeyKeep, 7*day)
	c.PruneEvery = cmp.Or(c.PruneEvery, time.Minute)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c, c.check()
}

func (c Config) check() error {
	if c.DatabaseURL == "" {
		return errors.New("--database ($ORDER_DATABASE_URL) is missing")
	}
	if _, err := pgxpool.ParseConfig(c.DatabaseURL); err != nil {
		return errors.New("--database ($ORDER_DATABASE_URL) is not a PostgreSQL URL")
	}
	if c.AMQPURL == "" {
		return errors.New("--amqp ($ORDER_AMQP_URL) is missing")
	}
	if !isURL(c.AMQPURL, "amqp", "amqps") {
		return errors.New("--amqp ($ORDER_AMQP_URL) is not a URL like amqp://user:password@host:5672/vhost")
	}
	if c.ManagementURL != "" && !isURL(c.ManagementURL, "http", "https") {
		return errors.New("--management ($BATON_MANAGEMENT_URL) is not a URL like http://user:password@host:15672")
	}
	if c.QueueType != "quorum" && c.QueueType != "classic" {
		return fmt.Errorf("--queue-type ($QUEUE_TYPE) is %q, want quorum or classic", c.QueueType)
	}
	if c.Batch < 1 || c.Prefetch < 1 || c.Prefetch > 65535 {
		return fmt.Errorf("--batch ($BATON_BATCH) is %d and --prefetch ($BATON_PREFETCH) %d, want 1 or more, and a prefetch up to 65535", c.Batch, c.Prefetch)
	}
	if c.NumberBlock < 1 || c.NumberBlock > 100_000 {
		return fmt.Errorf("--number-block ($ORDER_NUMBER_BLOCK) is %d, want 1 to 100000", c.NumberBlock)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"--audit-every ($BATON_AUDIT_EVERY)", c.AuditEvery},
		{"--retry-ttl ($BATON_RETRY_TTL)", c.RetryTTL},
		{"--lease ($BATON_RELAY_LEASE)", c.Lease},
		{"--poll ($BATON_RELAY_POLL)", c.Poll},
		{"--request-timeout ($ORDER_REQUEST_TIMEOUT)", c.RequestTimeout},
		{"--max-event-age ($BATON_MAX_EVENT_AGE)", c.MaxEventAge},
		{"--replay-window ($BATON_REPLAY_WINDOW)", c.ReplayWindow},
		{"--backup-age ($BATON_BACKUP_AGE)", c.BackupAge},
		{"--inbox-keep ($BATON_INBOX_KEEP)", c.InboxKeep},
		{"--outbox-keep ($BATON_OUTBOX_KEEP)", c.OutboxKeep},
		{"--key-keep ($ORDER_KEY_KEEP)", c.KeyKeep},
		{"--prune-every ($BATON_PRUNE_EVERY)", c.PruneEvery},
	} {
		if d.value < time.Millisecond {
			return fmt.Errorf("%s is %s, want a millisecond or more", d.name, d.value)
		}
	}
	if need := c.MaxEventAge + c.ReplayWindow + c.BackupAge; c.InboxKeep < need {
		return fmt.Errorf("--inbox-keep ($BATON_INBOX_KEEP) is %s, want at least --max-event-age + --replay-window + --backup-age = %s: "+
			"an event that comes back after its id was forgotten would be applied twice", c.InboxKeep, need)
	}
	if c.Faults && !loopback(c.HTTPAddr) {
		return fmt.Errorf("--faults ($BATON_FAULTS) is set and --http ($ORDER_HTTP) is %s: faults need a loopback address such as 127.0.0.1:8080", c.HTTPAddr)
	}
	return nil
}

// isURL does not say what is wrong with a URL, because the reason might quote
// the password.
func isURL(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return false
	}
	for _, scheme := range schemes {
		if u.Scheme == scheme {
			return true
		}
	}
	return false
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// timeouts end what waits in the database for somebody who was stopped in the
// middle of a transaction.
var timeouts = map[string]string{
	"lock_timeout":                        "5s",
	"statement_timeout":                   "15s",
	"idle_in_transaction_session_timeout": "15s",
}

// Every statement that is run often finds its rows by an index, and its plan does
// not depend on what it looks for. So it is planned once for each connection, and
// a table that was empty at that moment does not have it scanned for ever after.
var planning = map[string]string{
	"plan_cache_mode": "force_generic_plan",
	"enable_seqscan":  "off",
	"jit":             "off",
}

// poolConfig is DatabaseURL with what it leaves open filled in.
func (c Config) poolConfig() *pgxpool.Config {
	pc, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		panic(err) // checked
	}
	if !strings.Contains(c.DatabaseURL, "pool_max_conns") {
		pc.MaxConns = 16
	}
	if _, ok := pc.ConnConfig.RuntimeParams["application_name"]; !ok {
		pc.ConnConfig.RuntimeParams["application_name"] = "order"
	}
	settings := maps.Clone(timeouts)
	if pc.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement { // there is no pooler in between
		maps.Copy(settings, planning)
	}
	for name, value := range settings {
		switch set, ok := pc.ConnConfig.RuntimeParams[name]; {
		case !ok:
			pc.ConnConfig.RuntimeParams[name] = value
		case set == "":
			delete(pc.ConnConfig.RuntimeParams, name) // the server's own; poolers refuse the parameter
		}
	}
	pc.ConnConfig.ConnectTimeout = cmp.Or(pc.ConnConfig.ConnectTimeout, 5*time.Second)
	return pc
}
