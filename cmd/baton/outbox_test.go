package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

// baton runs a command in this process and returns what it printed.
func baton(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestOutboxCommands(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	db := testenv.Pool(t, url)
	for _, sql := range []string{outbox.Schema,
		`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at, status, failed_at, last_error, attempt_count)
		 select 'failed-' || n, 'ORD-' || n, 1, 'order.created', '{}', now(), 'Failed', now(), 'unroutable', 12 from generate_series(1, 3) n`,
		`insert into outbox_messages (event_id, aggregate_id, sequence, event_type, payload, occurred_at) values ('waits', 'ORD-9', 1, 't', '{}', now())`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	with := func(args ...string) []string { return append([]string{"outbox", "--database", url}, args...) }

	out, err := baton(t, with("list")...)
	if err != nil || !strings.Contains(out, "1 pending, 0 in hand, 3 failed") || !strings.Contains(out, "failed-2") || !strings.Contains(out, "unroutable") {
		t.Errorf("list: %v\n%s", err, out)
	}
	out, err = baton(t, with("list", "--json", "--status", "Failed", "--limit", "2")...)
	var listed struct {
		Failed int
		Rows   []outbox.Row
	}
	if err != nil || json.Unmarshal([]byte(out), &listed) != nil || listed.Failed != 3 || len(listed.Rows) != 2 {
		t.Errorf("list --json: %v\n%s", err, out)
	}
	if out, err = baton(t, with("requeue", "failed-1")...); err != nil || out != "requeued 1: failed-1\n" {
		t.Errorf("requeue: %v %s", err, out)
	}
	if out, err = baton(t, with("requeue", "waits")...); err == nil {
		t.Errorf("requeued what had not failed: %s", out)
	}
	if _, err = baton(t, with("requeue")...); err == nil || !strings.Contains(err.Error(), "--all") {
		t.Errorf("requeue without ids: %v", err)
	}
	if out, err = baton(t, with("discard", "failed-2", "--json")...); err != nil || !strings.Contains(out, `"discarded":["failed-2"]`) {
		t.Errorf("discard: %v %s", err, out)
	}
	if out, err = baton(t, with("requeue", "--all")...); err != nil || out != "requeued 1: failed-3\n" {
		t.Errorf("requeue --all: %v %s", err, out)
	}
	if _, err = baton(t, "outbox", "list", "--service", "billing", "--database", url); err == nil || !strings.Contains(err.Error(), "billing") {
		t.Errorf("unknown service: %v", err)
	}
	if _, err = baton(t, "outbox", "list", "--name", "nosuch"); err == nil || !strings.Contains(err.Error(), "ORDER_DATABASE_URL") {
		t.Errorf("nothing runs: %v", err)
	}
}
