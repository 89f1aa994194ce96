package stack_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/servers"
	"example.com/baton/internal/stack"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

// A stack with several processes is started, hurt, kept alive and stopped, and
// nothing of it is left.
func TestStack(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	own := testenv.OwnConfig(t)
	s, err := stack.New(stack.Config{
		Home: own.Home, Kind: own.Kind, Orders: 2, Env: []string{"BATON_FAULTS=1"},
		Progress: func(line string) { t.Log(line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		if err := s.Stop(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)

	order := map[string]any{"customerId": "C1", "amount": 1, "currency": "CNY", "items": []any{map[string]any{"sku": "SKU-1", "quantity": 1}}}
	first, second := s.Orders[0], s.Orders[1]
	if got := []string{first.Name, second.Name, s.Inventories[0].Name}; strings.Join(got, " ") != "order-1 order-2 inventory" {
		t.Errorf("processes are %q", got)
	}

	// A process that is frozen answers nothing, the other does.
	if err := first.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	if _, err := first.Do(short, http.MethodGet, "/livez", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen process: %v", err)
	}
	cancel()
	if _, err := second.Do(ctx, http.MethodPost, "/orders", order); err != nil {
		t.Error(err)
	}
	if err := first.Thaw(ctx); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "the thawed process answers", func() error { return first.Healthy(ctx) })

	// One that dies at a step is started again, and so is one that just dies.
	keepCtx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() { s.Keep(keepCtx, time.Second, first.Server, second.Server) })
	t.Cleanup(func() { cancel(); keeping.Wait() })
	armed, err := first.Arm(ctx, faults.Fault{Step: outbox.StepClaimed, Action: faults.Crash})
	if err != nil {
		t.Fatal(err)
	}
	if happened, err := armed.Happened(); err != nil || happened {
		t.Errorf("before an order: happened %t, %v", happened, err)
	}
	if _, err := first.Do(ctx, http.MethodPost, "/orders", order); err != nil {
		t.Error(err)
	}
	testenv.Eventually(t, time.Minute, "it crashes", func() error {
		happened, err := armed.Happened()
		return errors.Join(err, testenv.Want(happened, true))
	})
	if err := second.Crash(ctx); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Orders {
		testenv.Eventually(t, time.Minute, p.Name+" is back", func() error { return p.Healthy(ctx) })
	}
	metrics, err := s.Inventories[0].Metrics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if metrics[`baton_inventory_events_total{outcome="reserved"}`] < 1 || metrics["go_goroutines"] < 1 {
		t.Errorf("metrics of inventory: %v", metrics)
	}

	cancel()
	keeping.Wait()
	if err := first.Freeze(ctx); err != nil { // Stop copes with that too
		t.Fatal(err)
	}
	stop()
	nothingRuns(t, own.Home)
	if conn, err := pgx.Connect(ctx, s.AdminURL(stack.Order)); err == nil {
		conn.Close(ctx)
		t.Error("the database still answers")
	}
}

func nothingRuns(t *testing.T, home *servers.Home) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(env), home.Env()[0]+"\x00") {
			t.Errorf("left running: %s", filepath.Dir(file))
		}
	}
}
