package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/baton/internal/chaos"
	"example.com/baton/internal/testenv"
)

// The plan is that of the seed, and printing it runs nothing.
func TestChaosPlan(t *testing.T) {
	t.Parallel()
	plan, code := play(t, "chaos", "--plan", "--seed", "7")
	if again, _ := play(t, "chaos", "--plan", "--seed", "7", "--minutes", "3"); code != 0 || plan != again {
		t.Errorf("exit code %d; first\n%s\nthen\n%s", code, plan, again)
	}
	for _, kind := range chaos.Kinds() {
		if !strings.Contains(plan, string(kind)) {
			t.Errorf("no %s in the plan of three minutes", kind)
		}
	}
	if other, _ := play(t, "chaos", "--plan", "--seed", "8"); plan == other {
		t.Error("another seed has the same plan")
	}
}

func TestChaosRender(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page := filepath.Join(dir, "chaos.md")
	data := filepath.Join(dir, "chaos.json")
	for file, content := range map[string]string{
		page: "# P\n\n<!-- chaos -->\n<!-- /chaos -->\n",
		data: `{"ok":true,"accepted":4711,"faults":{"kill":3},"origin":{"command":"./baton chaos"}}`,
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, code := play(t, "chaos", "--render", data); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	rendered, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# P\n", "4711", "| `kill` | 3 |", "`./baton chaos`"} {
		if !strings.Contains(string(rendered), want) {
			t.Errorf("no %q in\n%s", want, rendered)
		}
	}
}

func TestChaosRefuses(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"--minutes", "0"}, {"--rate", "0"}, {"--orders", "-1"}, {"--servers", "cloud"}} {
		if out, code := play(t, append([]string{"chaos"}, flags...)...); code != 1 || out == "" {
			t.Errorf("%v: exit code %d, %q", flags, code, out)
		}
	}
}

// An interrupted run says so, is no success, and leaves nothing running.
func TestChaosInterrupted(t *testing.T) {
	t.Parallel()
	local(t)
	run := start(t, "chaos", "--servers", "local")
	mark := regexp.MustCompile(`BATON_HOME=[^\x00]+`)
	var home string
	testenv.Eventually(t, time.Minute, "it has children", func() error {
		for _, c := range childrenOf(t, run.cmd.Process.Pid) {
			if home = mark.FindString(c.environ); home != "" {
				return nil
			}
		}
		return errors.New("none with a mark")
	})
	run.signal(t, syscall.SIGINT)
	if code := run.end(t); code != 1 || !strings.Contains(run.output(), "interrupted") {
		t.Errorf("exit code %d", code)
	}
	for _, c := range children(t, func(c child) bool { return strings.Contains(c.environ, home+"\x00") }) {
		t.Errorf("left running: %d %s", c.pid, c.path)
	}
	if _, err := os.Stat(strings.TrimPrefix(home, "BATON_HOME=")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its data are left: %v", err)
	}
}
