package bench

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/internal/record"
)

// docs/performance.md says what the JSON files beside it do.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"docker", "local"} {
		var rep Report
		err := record.Read("../../docs/performance."+kind+".json", &rep)
		if errors.Is(err, fs.ErrNotExist) { // not measured yet
			if !strings.Contains(string(page), "<!-- "+kind+" -->\n<!-- /"+kind+" -->") {
				t.Errorf("docs/performance.md has figures of %s servers that no file has", kind)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		rendered, err := record.Section(page, kind, rep.Markdown())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(rendered), string(page)); diff != "" {
			t.Errorf("run ./baton bench --render docs/performance.%s.json (-json +page):\n%s", kind, diff)
		}
	}
}

func TestGoals(t *testing.T) {
	t.Parallel()
	r := Report{
		Latencies: []Latency{{What: arrivalWhat, P50: 2, P99: 30}},
		Memory:    []Figure{{"order", 30}, {"inventory", 20}, {"order", 34}, {"inventory", 90}, {"order", 32}, {"inventory", 21}},
	}
	r.conclude(map[string][]Pair{
		"R1":    {{100, 90}, {100, 60}, {100, 80}},
		"A1.8":  {{100, 60}},
		"A1.32": {{100, 95}},
		"L2":    {{3, 6}},
	})
	got := map[string]string{}
	for _, g := range r.Goals {
		got[g.ID] = g.show(g.Value) + " " + g.verdict()
	}
	want := map[string]string{
		"R1": "0.80 must", "A1": "0.60 missed", "L1.50": "2.0 ms goal", "L1.99": "30.0 ms missed",
		"L2": "2.00 goal", "M1.memory": "32.0 MiB goal",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("goals (-want +got):\n%s", diff)
	}
	if r.OK {
		t.Error("ok, although goals are missed")
	}
	if c := r.Comparisons[0]; c.Ratio != 0.8 || c.Least != 0.6 || c.Most != 0.9 {
		t.Errorf("ratios of R1: %+v", c)
	}
}
