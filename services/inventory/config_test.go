package inventory

import (
	"net"
	"strings"
	"testing"
	"time"
)

func TestBadConfigNamesTheSetting(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"no database", func(c *Config) { c.DatabaseURL = "" }, []string{"INVENTORY_DATABASE_URL"}},
		{"database", func(c *Config) { c.DatabaseURL = "postgres://u:S3cr3t%zz@h/x" }, []string{"INVENTORY_DATABASE_URL"}},
		{"database port", func(c *Config) { c.DatabaseURL = "postgres://u:S3cr3t/1@h/x" }, []string{"INVENTORY_DATABASE_URL"}},
		{"no broker", func(c *Config) { c.AMQPURL = "" }, []string{"INVENTORY_AMQP_URL"}},
		{"broker", func(c *Config) { c.AMQPURL = "http://u:S3cr3t@h" }, []string{"INVENTORY_AMQP_URL"}},
		{"broker port", func(c *Config) { c.AMQPURL = "amqp://u:S3cr3t/1@h" }, []string{"INVENTORY_AMQP_URL"}},
		{"management", func(c *Config) { c.ManagementURL = "u:S3cr3t@h" }, []string{"BATON_MANAGEMENT_URL"}},
		{"queue type", func(c *Config) { c.QueueType = "stream" }, []string{"QUEUE_TYPE", "stream"}},
		{"queues", func(c *Config) { c.Queues = 65 }, []string{"INVENTORY_QUEUES", "65"}},
		{"batch", func(c *Config) { c.Batch = -1 }, []string{"BATON_BATCH", "-1"}},
		{"prefetch", func(c *Config) { c.Prefetch = 70000 }, []string{"BATON_PREFETCH", "70000"}},
		{"audit", func(c *Config) { c.AuditEvery = -time.Second }, []string{"BATON_AUDIT_EVERY", "-1s"}},
		{"lease", func(c *Config) { c.Lease = -time.Second }, []string{"BATON_RELAY_LEASE", "-1s"}},
		{"faults", func(c *Config) { c.Faults, c.HTTPAddr = true, "0.0.0.0:8081" }, []string{"BATON_FAULTS", "INVENTORY_HTTP"}},
		{"faults on all addresses", func(c *Config) { c.Faults, c.HTTPAddr = true, ":8081" }, []string{"BATON_FAULTS", "INVENTORY_HTTP"}},
		{"inbox forgets too soon", func(c *Config) { c.InboxKeep, c.MaxEventAge, c.ReplayWindow, c.BackupAge = 6*day, day, 2*day, 4*day },
			[]string{"BATON_INBOX_KEEP", "144h0m0s", "24h0m0s", "48h0m0s", "96h0m0s", "168h0m0s"}},
	} {
		c := Config{DatabaseURL: "postgres://u:S3cr3t@h/x", AMQPURL: "amqp://u:S3cr3t@h/v"}
		tt.change(&c)
		err := Run(t.Context(), c)
		if err == nil {
			t.Errorf("%s: no error", tt.name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not say %s", tt.name, err, want)
			}
		}
		if strings.Contains(err.Error(), "S3cr3t") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %q, want one line without the password", tt.name, err)
		}
	}
}

func TestDefaultsAreAGoodConfig(t *testing.T) {
	t.Parallel()
	if _, err := (Config{DatabaseURL: "postgres://u@h/x", AMQPURL: "amqp://u@h"}).withDefaults(); err != nil {
		t.Error(err)
	}
	exact := Config{DatabaseURL: "postgres://u@h/x", AMQPURL: "amqp://u@h", MaxEventAge: 1 * time.Hour,
		ReplayWindow: 2 * time.Hour, BackupAge: 3 * time.Hour, InboxKeep: 6 * time.Hour}
	if _, err := exact.withDefaults(); err != nil {
		t.Errorf("inbox kept for exactly as long as needed: %v", err)
	}
}

func TestAddressInUseNamesTheSetting(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = Run(t.Context(), Config{DatabaseURL: "postgres://u@h/x", AMQPURL: "amqp://u@h", HTTPAddr: taken.Addr().String()})
	if err == nil || !strings.Contains(err.Error(), "INVENTORY_HTTP") {
		t.Errorf("error %v, want one that names INVENTORY_HTTP", err)
	}
}

func TestDatabaseTimeouts(t *testing.T) {
	t.Parallel()
	c := Config{DatabaseURL: "postgres://u@h/x?lock_timeout=1s&statement_timeout=&pool_max_conns=2"}
	pool := c.poolConfig()
	params := pool.ConnConfig.RuntimeParams
	if got := params["lock_timeout"]; got != "1s" {
		t.Errorf("lock_timeout %q, want 1s from the URL", got)
	}
	if got, set := params["statement_timeout"]; set {
		t.Errorf("statement_timeout %q, want it left to the server", got)
	}
	if got := params["idle_in_transaction_session_timeout"]; got != "15s" {
		t.Errorf("idle_in_transaction_session_timeout %q, want the default 15s", got)
	}
	if pool.MaxConns != 2 {
		t.Errorf("%d connections, want 2 from the URL", pool.MaxConns)
	}
}
