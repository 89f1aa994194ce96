package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"time"

	"example.com/baton/services/inventory"
)

// settings are what the command line and the environment say.
type settings struct {
	inventory.Config
	logLevel slog.Level
	health   bool
}

// variables are the environment variables that stand in for flags.
var variables = map[string]string{
	"http":          "INVENTORY_HTTP",
	"database":      "INVENTORY_DATABASE_URL",
	"amqp":          "INVENTORY_AMQP_URL",
	"management":    "BATON_MANAGEMENT_URL",
	"audit-every":   "BATON_AUDIT_EVERY",
	"queue-type":    "QUEUE_TYPE",
	"queues":        "INVENTORY_QUEUES",
	"retry-ttl":     "BATON_RETRY_TTL",
	"batch":         "BATON_BATCH",
	"prefetch":      "BATON_PREFETCH",
	"lease":         "BATON_RELAY_LEASE",
	"poll":          "BATON_RELAY_POLL",
	"ordered":       "BATON_RELAY_ORDERED",
	"max-event-age": "BATON_MAX_EVENT_AGE",
	"inbox-keep":    "BATON_INBOX_KEEP",
	"replay-window": "BATON_REPLAY_WINDOW",
	"backup-age":    "BATON_BACKUP_AGE",
	"outbox-keep":   "BATON_OUTBOX_KEEP",
	"prune-every":   "BATON_PRUNE_EVERY",
	"faults":        "BATON_FAULTS",
	"log-level":     "BATON_LOG_LEVEL",
}

// readSettings takes each setting from its flag, else from its environment
// variable, else its default. An error is one line that names the setting.
func readSettings(args []string, getenv func(string) string, stderr io.Writer) (settings, error) {
	var s settings
	fs := flag.NewFlagSet("inventory", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // or a wrong flag would print the whole usage
	s.define(fs)
	// The command line comes later and wins. The help shows the defaults and not
	// these values, some of which hold passwords.
	for name, variable := range variables {
		if value := getenv(variable); value != "" {
			if err := fs.Set(name, value); err != nil {
				return s, fmt.Errorf("$%s is %q: %w", variable, value, err)
			}
		}
	}
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(stderr, "inventory hears of orders by events, reserves stock for each once, and answers by events.\n\nSettings, each also by its environment variable:")
		fs.SetOutput(stderr)
		fs.PrintDefaults()
	}
	if err == nil && fs.NArg() > 0 {
		err = fmt.Errorf("%q is not a setting; all of them begin with --", fs.Arg(0))
	}
	return s, err
}

func (s *settings) define(fs *flag.FlagSet) {
	const day = 24 * time.Hour
	usage := func(name, what string) string { return what + " ($" + variables[name] + ")" }
	text := func(p *string, name, value, what string) { fs.StringVar(p, name, value, usage(name, what)) }
	number := func(p *int, name string, value int, what string) { fs.IntVar(p, name, value, usage(name, what)) }
	period := func(p *time.Duration, name string, value time.Duration, what string) {
		fs.DurationVar(p, name, value, usage(name, what))
	}

	text(&s.HTTPAddr, "http", "127.0.0.1:8081", "listen `address`")
	text(&s.DatabaseURL, "database", "", "`URL` of the database, required")
	text(&s.AMQPURL, "amqp", "", "`URL` of the broker and vhost, required")
	text(&s.ManagementURL, "management", "", "`URL` of the broker's management API, to check bindings")
	period(&s.AuditEvery, "audit-every", 30*time.Second, "pause between checks of the bindings")
	text(&s.QueueType, "queue-type", "quorum", "quorum or classic")
	number(&s.Queues, "queues", 1, "queues that share the events by a hash of the order id")
	period(&s.RetryTTL, "retry-ttl", 2*time.Second, "wait of a failed delivery for its next attempt")
	number(&s.Batch, "batch", 250, "most deliveries for one transaction")
	number(&s.Prefetch, "prefetch", 500, "deliveries taken in advance")
	period(&s.Lease, "lease", 30*time.Second, "how long the relay's claim of an answer holds")
	period(&s.Poll, "poll", time.Second, "pause of the relay when there is nothing to send and nothing wakes it")
	fs.BoolVar(&s.Ordered, "ordered", false, usage("ordered", "send the answers of an order one at a time, in sequence"))
	period(&s.MaxEventAge, "max-event-age", 7*day, "older events are neither sent nor handled")
	period(&s.InboxKeep, "inbox-keep", 30*day, "how long ids of handled events are remembered")
	period(&s.ReplayWindow, "replay-window", 7*day, "how long dead letters may be put back")
	period(&s.BackupAge, "backup-age", 7*day, "age of the oldest backup that may be restored")
	period(&s.OutboxKeep, "outbox-keep", 7*day, "how long published answers are kept")
	period(&s.PruneEvery, "prune-every", time.Minute, "pause between removals of what is kept no longer")
	fs.BoolVar(&s.Faults, "faults", false, usage("faults", "let this machine arm faults at /faults; needs a loopback address"))
	fs.TextVar(&s.logLevel, "log-level", slog.LevelInfo, usage("log-level", "debug, info, warn or error"))
	fs.BoolVar(&s.health, "health", false, "ask the service at --http whether it lives, and exit 0 or 1")
}
