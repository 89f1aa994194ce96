package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/services/inventory"
)

// environment is a getenv of pairs.
func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	getenv := environment("INVENTORY_DATABASE_URL", "postgres://d", "INVENTORY_AMQP_URL", "amqp://a", "BATON_RETRY_TTL", "5s", "BATON_BATCH", "20", "BATON_FAULTS", "1")
	got, err := readSettings([]string{"--batch", "1", "-log-level", "debug"}, getenv, nil)
	if err != nil {
		t.Fatal(err)
	}
	const day = 24 * time.Hour
	want := settings{logLevel: slog.LevelDebug, Config: inventory.Config{
		HTTPAddr: "127.0.0.1:8081", DatabaseURL: "postgres://d", AMQPURL: "amqp://a", AuditEvery: 30 * time.Second,
		QueueType: "quorum", Queues: 1, RetryTTL: 5 * time.Second, Batch: 1, Prefetch: 500, Lease: 30 * time.Second, Poll: time.Second,
		MaxEventAge: 7 * day, InboxKeep: 30 * day, ReplayWindow: 7 * day, BackupAge: 7 * day,
		OutboxKeep: 7 * day, PruneEvery: time.Minute, Faults: true,
	}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(settings{})); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

// The help shows every setting, its variable and its default, and no password.
func TestHelp(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	getenv := environment("INVENTORY_DATABASE_URL", "postgres://u:S3cr3tDb@h/d", "INVENTORY_AMQP_URL", "amqp://u:S3cr3tBroker@h/")
	if err := run(t.Context(), []string{"-h"}, getenv, &out); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("got %v, want flag.ErrHelp", err)
	}
	for name, variable := range variables {
		if !strings.Contains(out.String(), "-"+name) || !strings.Contains(out.String(), "$"+variable) {
			t.Errorf("--%s ($%s) is not in the help", name, variable)
		}
	}
	if strings.Contains(out.String(), "S3cr3t") {
		t.Errorf("a password is in the help:\n%s", &out)
	}
}

// What is wrong stops the program with one line that names the setting.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	good := []string{"INVENTORY_DATABASE_URL", "postgres://u:S3cr3tDb@127.0.0.1:1/d", "INVENTORY_AMQP_URL", "amqp://u:S3cr3tBroker@127.0.0.1:1/"}
	for name, tt := range map[string]struct {
		args, env []string
		names     string
	}{
		"nothing":        {nil, nil, "INVENTORY_DATABASE_URL"},
		"bad duration":   {nil, append([]string{"BATON_RETRY_TTL", "2"}, good...), "BATON_RETRY_TTL"},
		"bad flag value": {[]string{"--lease", "long"}, good, "-lease"},
		"bad number":     {nil, append([]string{"BATON_BATCH", "many"}, good...), "BATON_BATCH"},
		"unknown flag":   {[]string{"--batsch", "1"}, good, "batsch"},
		"stray argument": {[]string{"start"}, good, "start"},
		"public faults":  {[]string{"--http", "0.0.0.0:0"}, append([]string{"BATON_FAULTS", "1"}, good...), "BATON_FAULTS"},
		"bad level":      {nil, append([]string{"BATON_LOG_LEVEL", "loud"}, good...), "BATON_LOG_LEVEL"},
	} {
		var stderr bytes.Buffer
		err := run(t.Context(), tt.args, environment(tt.env...), &stderr)
		if err == nil || !strings.Contains(err.Error(), tt.names) || strings.Contains(err.Error(), "\n") || stderr.Len() > 0 {
			t.Errorf("%s: %v, and %q on standard error, want one line that names %s", name, err, &stderr, tt.names)
		}
		if err != nil && strings.Contains(err.Error(), "S3cr3t") {
			t.Errorf("%s: a password is in %v", name, err)
		}
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	alive := true
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/livez" || !alive {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	addr := strings.TrimPrefix(srv.URL, "http://")
	check := func(addr string) error {
		return run(context.Background(), []string{"-health", "--http", addr}, environment(), nil)
	}
	if err := check(addr); err != nil {
		t.Errorf("a live service: %v", err)
	}
	if err := check(strings.Replace(addr, "127.0.0.1", "", 1)); err != nil {
		t.Errorf("a live service on all addresses: %v", err)
	}
	alive = false
	if check(addr) == nil {
		t.Error("one that answers 404 is healthy")
	}
	srv.Close()
	if check(addr) == nil {
		t.Error("one that is gone is healthy")
	}
}
