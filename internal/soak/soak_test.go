package soak

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"example.com/baton/internal/record"
)

// What grows by more than a tenth, and by more than nothing, is found; what only
// jumps about is not.
func TestCompare(t *testing.T) {
	t.Parallel()
	tables := key{tableSize, "orders.outbox_messages"}
	for name, tt := range map[string]struct {
		key   key
		value func(i int) float64 // of 100 samples
		grew  bool
	}{
		"flat":                 {tables, func(int) float64 { return 100 * mib }, false},
		"warming up":           {tables, func(i int) float64 { return float64(min(i, 30)) * mib }, false},
		"a leak":               {tables, func(i int) float64 { return float64(i) * mib }, true},
		"a step":               {tables, func(i int) float64 { return float64(20+i/70*20) * mib }, true},
		"a tenth":              {tables, func(i int) float64 { return float64(100+i/70*9) * mib }, false},
		"next to nothing":      {tables, func(i int) float64 { return float64(i) * 1000 }, false},
		"shrinking":            {tables, func(i int) float64 { return float64(200-i) * mib }, false},
		"a few bad looks":      {tables, func(i int) float64 { return float64(20+i%10/7*500) * mib }, false},
		"a table that is kept": {key{tableSize, "orders.orders"}, func(i int) float64 { return float64(i) * mib }, false},
		"slower":               {key{claimTime, "order"}, func(i int) float64 { return 0.001 * float64(i) }, true},
		"goroutines":           {key{goroutines, "order"}, func(i int) float64 { return float64(50 + i) }, true},
	} {
		var samples []sample
		for i := range 100 {
			samples = append(samples, sample{time.Duration(i) * time.Second, map[key]float64{tt.key: tt.value(i)}})
		}
		figures := compare(samples, 100*time.Second)
		if len(figures) != 1 || figures[0].Grew != tt.grew {
			t.Errorf("%s: %+v, want grew %t", name, figures, tt.grew)
		}
		rep := Report{Figures: figures, Accepted: 5, Rate: 1, OrdersPerSecond: 1}
		rep.Check.OK, rep.Check.Orders = true, 5
		rep.conclude(5, 0)
		if rep.OK == tt.grew || strings.Contains(rep.Text(), "grown: ") != tt.grew {
			t.Errorf("%s: the verdict is %t:\n%s", name, rep.OK, rep.Text())
		}
	}
}

// A run is no success if orders are missing, a rule is broken, the services did
// not keep up, or nobody looked.
func TestProblems(t *testing.T) {
	t.Parallel()
	good := func() Report {
		r := Report{Accepted: 5, Rate: 100, OrdersPerSecond: 99, Samples: 100}
		r.Check.OK, r.Check.Orders = true, 5
		return r
	}
	for name, spoil := range map[string]func(*Report){
		"":                 func(*Report) {},
		"lost":             func(r *Report) { r.Check.Orders = 4 },
		"refused":          func(r *Report) { r.Accepted = 4 },
		"a rule is broken": func(r *Report) { r.Check.OK = false },
		"too slow":         func(r *Report) { r.OrdersPerSecond = 80 },
		"still busy":       func(r *Report) { r.Check.Unsettled = "5 not sent" },
		"an odd answer":    func(r *Report) { r.Problems = []string{"/orders: 500"} },
	} {
		r := good()
		spoil(&r)
		r.conclude(5, 0)
		if r.OK != (name == "") {
			t.Errorf("%q: the verdict is %t", name, r.OK)
		}
	}
	r := good()
	if r.conclude(5, 11); r.OK {
		t.Error("a run with eleven looks of a hundred missing is a success")
	}
}

// docs/chaos.md shows the committed report.
func TestPage(t *testing.T) {
	t.Parallel()
	var rep Report
	if err := record.Read("../../docs/soak.json", &rep); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/chaos.md")
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := record.Section(page, "soak", rep.Markdown())
	if err != nil {
		t.Fatal(err)
	}
	if string(rendered) != string(page) {
		t.Error("docs/chaos.md is not what docs/soak.json says: run ./baton soak --render docs/soak.json")
	}
	floors := fmt.Sprintf("%.0f MiB of memory, %.0f goroutines or files, %.0f connections, %.0f MiB of a table or its indexes, %.0f messages, "+
		"%.0f ms of a claim, and %.0f, %.0f and %.0f ms of the time", residentMemory.floor/mib, goroutines.floor, poolConnections.floor, tableSize.floor/mib,
		queued.floor, claimTime.floor*1000, latency50.floor*1000, latency95.floor*1000, latency99.floor*1000)
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), floors) {
		t.Errorf("docs/chaos.md does not say %q", floors)
	}
	if !rep.OK || rep.Accepted < 200_000 {
		t.Errorf("the report is of %d orders, and its verdict is %t", rep.Accepted, rep.OK)
	}
}
