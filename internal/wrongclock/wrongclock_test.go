package wrongclock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/baton/internal/wrongclock"
)

// run runs testdata/clock, which shifts its clock by 10 minutes, by two days and
// to right, and returns for each time that it saw how wrong that was.
func run(t *testing.T, env ...string) []time.Duration {
	t.Helper()
	flags, err := wrongclock.Flags(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"run"}, flags...), "./testdata/clock")...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	now := time.Now()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	var wrong []time.Duration
	for line := range strings.Lines(string(out)) {
		var sec int64
		monotonic := true
		if _, err := fmt.Sscan(line, &sec, &monotonic); err != nil && len(strings.Fields(line)) != 1 {
			t.Fatalf("%q: %v", line, err)
		}
		if !monotonic {
			t.Errorf("%q: the jump shows in the time between two looks at the clock", line)
		}
		// Whoever runs this may take a while to.
		wrong = append(wrong, time.Unix(sec, 0).Sub(now).Round(5*time.Minute))
	}
	return wrong
}

func TestWholeProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env  string
		want time.Duration
	}{{"", 0}, {wrongclock.Offset + "=-24h", -24 * time.Hour}} {
		got := run(t, tt.env)
		want := []time.Duration{tt.want, 10 * time.Minute, -48 * time.Hour, 0}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("with %q the clock is wrong by %v, want %v", tt.env, got, want)
		}
	}
}

// A standard library that looks different must not make a program whose clock is
// right after all.
func TestOtherStandardLibrary(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "src", "time"), 0o700); err != nil {
		t.Fatal(err)
	}
	other := []byte("package time\n\nfunc Now() Time { return Time{} }\n")
	if err := os.WriteFile(filepath.Join(root, "src", "time", "time.go"), other, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOROOT", root) // so this test is not parallel
	if flags, err := wrongclock.Flags(t.TempDir()); err == nil || !strings.Contains(err.Error(), "reads the clock in 0 places") {
		t.Errorf("flags %v, error %v, want one that says what was not found", flags, err)
	}
}
