package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config is everything the inventory service can be told. DatabaseURL and
// AMQPURL are required; every other field has a usable zero value.
type Config struct {
	// HTTPAddr is where the API listens. Defaults to 127.0.0.1:8081.
	HTTPAddr string
	// Listener, when set, is used in place of HTTPAddr.
	Listener net.Listener

	// DatabaseURL is the database with the schema of migrations/inventory.
	// Without pool_max_conns in it, up to 8 connections are kept. Unless it says
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
	// Queues is how many queues the orders' events are dealt out to, by a hash of
	// the order id, each with a consumer of its own in each process. More than one
	// needs the broker's plugin rabbitmq_consistent_hash_exchange, and all processes
	// need the same number. Defaults to 1.
	Queues int
	// RetryTTL is how long a failed delivery waits for its next attempt.
	// Defaults to 2 seconds.
	RetryTTL time.Duration
	// Batch is how many deliveries one transaction takes at most, and Prefetch
	// how many the broker hands over in advance, of each queue. They default to 250
	// and 500.
	Batch, Prefetch int
	// Lease is how long the relay's claim of an answer keeps other relays away.
	// Defaults to 30 seconds.
	Lease time.Duration
	// Poll is how often the relay looks for answers that nobody woke it for: those
	// of other processes, and those whose time to be sent again has come.
	// Defaults to 1 second.
	Poll time.Duration
	// Ordered makes the answers of an order leave one at a time, in sequence; see
	// [outbox.Relay].
	Ordered bool

	// MaxEventAge is the age from which on an event is neither sent nor handled,
	// because its id may have been forgotten. Defaults to 7 days.
	MaxEventAge time.Duration
	// InboxKeep is for how long ids of handled events are remembered. It must
	// cover MaxEventAge, ReplayWindow (how long after that people may put dead
	// letters back) and BackupAge (of the oldest backup that may be restored),
	// or Run refuses to start. Defaults to 30 days; the others to 7 days each.
	InboxKeep, ReplayWindow, BackupAge time.Duration
	// OutboxKeep is for how long published answers are kept to be looked at.
	// Defaults to 7 days.
	OutboxKeep time.Duration
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
	c.HTTPAddr = cmp.Or(c.HTTPAddr, "127.0.0.1:8081")
	if c.Listener != nil {
		c.HTTPAddr = c.Listener.Addr().String()
	}
	c.AuditEvery = cmp.Or(c.AuditEvery, 30*time.Second)
	c.QueueType = cmp.Or(c.QueueType, "quorum")
	c.Queues = cmp.Or(c.Queues, 1)
	c.RetryTTL = cmp.Or(c.RetryTTL, 2*time.Second)
	c.Batch, c.Prefetch = cmp.Or(c.Batch, 250), cmp.Or(c.Prefetch, 500)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.Poll = cmp.Or(c.Poll, time.Second)
	c.MaxEventAge = cmp.Or(c.MaxEventAge, 7*day)
	c.ReplayWindow = cmp.Or(c.ReplayWindow, 7*day)
	c.BackupAge = cmp.Or(c.BackupAge, 7*day)
	c.InboxKeep = cmp.Or(c.InboxKeep, 30*day)
	c.OutboxKeep = cmp.Or(c.OutboxKeep, 7*day)
	c.PruneEvery = cmp.Or(c.PruneEvery, time.Minute)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c, c.check()
}

func (c Config) check() error {
	switch {
	case c.DatabaseURL == "":
		return errors.New("--database ($INVENTORY_DATABASE_URL) is missing")
	case !isDatabaseURL(c.DatabaseURL):
		return errors.New("--database ($INVENTORY_DATABASE_URL) is not a URL like postgres://user:password@host:5432/inventory")
	case c.AMQPURL == "":
		return errors.New("--amqp ($INVENTORY_AMQP_URL) is missing")
	case !isURL(c.AMQPURL, "amqp", "amqps"):
		return errors.New("--amqp ($INVENTORY_AMQP_URL) is not a URL like amqp://user:password@host:5672/vhost")
	case c.ManagementURL != "" && !isURL(c.ManagementURL, "http", "https"):
		return errors.New("--management ($BATON_MANAGEMENT_URL) is not a URL like http://user:password@host:15672")
	case c.QueueType != "quorum" && c.QueueType != "classic":
		return fmt.Errorf("--queue-type ($QUEUE_TYPE) is %q, want quorum or classic", c.QueueType)
	case c.Queues < 1 || c.Queues > 64:
		return fmt.Errorf("--queues ($INVENTORY_QUEUES) is %d, want 1 to 64", c.Queues)
	case c.Batch < 1:
		return fmt.Errorf("--batch ($BATON_BATCH) is %d, want 1 or more", c.Batch)
	case c.Prefetch < 1 || c.Prefetch > 65535:
		return fmt.Errorf("--prefetch ($BATON_PREFETCH) is %d, want 1 to 65535", c.Prefetch)
	case c.Faults && !loopback(c.HTTPAddr):
		return fmt.Errorf("--faults ($BATON_FAULTS) is set and --http ($INVENTORY_HTTP) is %s: faults need a loopback address such as 127.0.0.1:8081", c.HTTPAddr)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"--audit-every ($BATON_AUDIT_EVERY)", c.AuditEvery},
		{"--retry-ttl ($BATON_RETRY_TTL)", c.RetryTTL},
		{"--lease ($BATON_RELAY_LEASE)", c.Lease},
		{"--poll ($BATON_RELAY_POLL)", c.Poll},
		{"--max-event-age ($BATON_MAX_EVENT_AGE)", c.MaxEventAge},
		{"--replay-window ($BATON_REPLAY_WINDOW)", c.ReplayWindow},
		{"--backup-age ($BATON_BACKUP_AGE)", c.BackupAge},
		{"--inbox-keep ($BATON_INBOX_KEEP)", c.InboxKeep},
		{"--outbox-keep ($BATON_OUTBOX_KEEP)", c.OutboxKeep},
		{"--prune-every ($BATON_PRUNE_EVERY)", c.PruneEvery},
	} {
		if d.value < time.Millisecond {
			return fmt.Errorf("%s is %s, want a millisecond or more", d.name, d.value)
		}
	}
	return c.checkRetention()
}

// checkRetention holds the promise that an event cannot be handled twice: as
// long as a copy may still come, its id is remembered.
func (c Config) checkRetention() error {
	if need := c.MaxEventAge + c.ReplayWindow + c.BackupAge; c.InboxKeep < need {
		return fmt.Errorf("--inbox-keep ($BATON_INBOX_KEEP) is %s, want at least --max-event-age %s + --replay-window %s + --backup-age %s = %s: "+
			"an event that comes back after its id was forgotten would be handled twice",
			c.InboxKeep, c.MaxEventAge, c.ReplayWindow, c.BackupAge, need)
	}
	return nil
}

// isURL does not say what is wrong with a URL, because the reason might quote
// the password.
func isURL(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && slices.Contains(schemes, u.Scheme)
}

func isDatabaseURL(text string) bool {
	_, err := pgxpool.ParseConfig(text)
	return err == nil
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// The database ends what takes too long, so that a row somebody else holds
// becomes an error with a name, long before the broker loses patience with a
// delivery.
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

func (c Config) poolConfig() *pgxpool.Config {
	pc, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		panic(err) // checked
	}
	if !strings.Contains(c.DatabaseURL, "pool_max_conns") {
		pc.MaxConns = 8
	}
	params := pc.ConnConfig.RuntimeParams
	params["application_name"] = cmp.Or(params["application_name"], "inventory")
	settings := maps.Clone(timeouts)
	if pc.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement { // there is no pooler in between
		maps.Copy(settings, planning)
	}
	for name, value := range settings {
		switch set, given := params[name]; {
		case !given:
			params[name] = value
		case set == "":
			delete(params, name)
		}
	}
	pc.ConnConfig.ConnectTimeout = cmp.Or(pc.ConnConfig.ConnectTimeout, 5*time.Second)
	return pc
}
