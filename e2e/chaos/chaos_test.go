// Package chaos is a short run of what "baton chaos" does, with programs that
// look for data races.
package chaos

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/baton/internal/chaos"
	"example.com/baton/internal/testenv"
)

// The same every time, and by night for longer with a seed that is new each day.
func TestChaos(t *testing.T) {
	t.Parallel()
	own := testenv.OwnConfig(t)
	opts := chaos.Options{
		Home: own.Home, Kind: own.Kind, Build: []string{"-race"},
		Seed: 7, Duration: 45 * time.Second, Rate: 20,
		Progress: func(line string) { t.Log(line) },
	}
	if os.Getenv("BATON_NIGHTLY") != "" {
		opts.Seed, opts.Duration = uint64(time.Now().Unix()/86400), 10*time.Minute
	}
	t.Logf("seed %d", opts.Seed)
	rep, err := chaos.Run(t.Context(), opts)
	if err != nil {
		t.Error(err)
	}
	t.Log(rep.Text())
	if !rep.OK {
		t.Error("not every order was handled once, or the run was not as planned")
	}
	if rep.DuplicatesAbsorbed == 0 || rep.RequestsRepeated == 0 {
		t.Errorf("%d duplicates absorbed, %d requests repeated: was anything disturbed?", rep.DuplicatesAbsorbed, rep.RequestsRepeated)
	}
	if t.Failed() {
		showLogs(t, own.Home.Path())
	}
}

// showLogs shows the end of every log, before they are removed.
func showLogs(t *testing.T, dir string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range logs {
		const most = 16 << 10
		if log, err := os.ReadFile(file); err == nil {
			t.Logf("the end of %s:\n%s", filepath.Base(file), log[max(0, len(log)-most):])
		}
	}
}
