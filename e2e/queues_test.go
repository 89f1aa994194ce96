package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/baton/internal/check"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// TestSeveralQueues runs two inventory processes on four queues: every queue has
// orders and both processes as its consumers, everything is handled once, and the
// checker follows what is in any of them.
func TestSeveralQueues(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Audit: true, Env: []string{"INVENTORY_QUEUES=4"}})
	order, inventory := s.Start()
	second := s.StartInventory()
	testenv.Eventually(t, 30*time.Second, "two consumers for each queue", func() error {
		queues, err := s.Broker.Queues(t.Context())
		if err != nil {
			return err
		}
		for _, name := range inventoryQueues(4) {
			if got := queues[name].Consumers; got != 2 {
				return fmt.Errorf("%s has %d", name, got)
			}
		}
		return nil
	})
	for _, o := range s.Place(200)[:50] {
		s.Cancel(o)
	}
	s.Settled()
	s.Exact()
	if got := inventory.Metric("baton_consumer_acked_total") + second.Metric("baton_consumer_acked_total"); got < 250 {
		t.Errorf("%v deliveries acked by the metrics, want 250 or more", got)
	}
	for _, p := range []*system.Process{order, inventory, second} {
		if _, body, err := p.Get("/readyz"); err != nil || !strings.Contains(string(body), `"bindings","status":"ok"`) {
			t.Errorf("%s: %v; want bindings ok", body, err)
		}
	}

	// What waits in them is on its way, and stuck only if nobody reads it.
	inventory.Stop()
	second.Stop()
	s.Place(100)
	testenv.Eventually(t, 30*time.Second, "events in every queue", func() error {
		for _, name := range inventoryQueues(4) {
			if n, err := testenv.QueueDepth(s.Vhost, name); err != nil || n == 0 {
				return fmt.Errorf("%d in %s, %v", n, name, err)
			}
		}
		return nil
	})
	report, err := check.Run(t.Context(), s.Sources(), check.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Violations) > 0 || report.InFlight != 100 {
		t.Errorf("%d in flight, violations %v; want 100 and none", report.InFlight, report.Violations)
	}
	inventory.Restart()
	s.Settled()
	s.Exact()
}

// TestNumberOfQueuesChanges goes from one queue to four, to two and back to one,
// with events waiting in what is left behind, and at last with processes of
// different numbers at the same time.
func TestNumberOfQueuesChanges(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Audit: true, Env: []string{"BATON_AUDIT_EVERY=500ms"}})
	_, inventory := s.Start()
	load := s.Load(60)
	wait := func(names ...string) {
		t.Helper()
		testenv.Eventually(t, 30*time.Second, fmt.Sprintf("events in %v", names), func() error {
			for _, name := range names {
				if n, err := testenv.QueueDepth(s.Vhost, name); err != nil || n == 0 {
					return fmt.Errorf("%d in %s, %v", n, name, err)
				}
			}
			return nil
		})
	}
	change := func(from *system.Process, queues int) *system.Process {
		t.Helper()
		p := s.StartInventory(fmt.Sprintf("INVENTORY_QUEUES=%d", queues))
		testenv.Eventually(t, 30*time.Second, "it has handled some", func() error {
			return testenv.Want(p.Metric("baton_consumer_acked_total") > 0, true)
		})
		if from != nil {
			from.Stop()
		}
		return p
	}
	inventory.Stop()
	wait(inventoryQueues(1)...)
	four := change(nil, 4)
	four.Stop()
	wait(inventoryQueues(4)...)
	two := change(nil, 2)
	two.Stop()
	wait(inventoryQueues(2)...)
	one := change(nil, 1)
	// Each starts before the one before ends, and both repair what the other undoes.
	last := change(change(change(one, 3), 1), 2)
	load.Stop()
	s.Settled()
	s.Exact()

	// Started again, it leaves only what belongs to two.
	last.Stop()
	last.Restart()
	testenv.Eventually(t, 30*time.Second, "bindings of two queues", func() error {
		_, body, err := last.Get("/readyz")
		if err == nil && !strings.Contains(string(body), `"bindings","status":"ok"`) {
			err = fmt.Errorf("%s", body)
		}
		return err
	})
	s.Place(20)
	s.Settled()
	s.Exact()
	for _, name := range inventoryQueues(4) {
		if n, err := testenv.QueueDepth(s.Vhost, name); err != nil || n > 0 {
			t.Errorf("%d in %s, %v; want an empty queue", n, name, err)
		}
	}
}

func inventoryQueues(n int) []string {
	names := []string{system.InventoryQueue}
	for i := 2; i <= n; i++ {
		names = append(names, fmt.Sprintf("%s.%d", system.InventoryQueue, i))
	}
	return names
}
