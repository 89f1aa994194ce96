package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/baton/internal/record"
	"example.com/baton/internal/soak"
	"example.com/baton/internal/testenv"
)

// A run that is far too short to judge growth by: every kind of figure is there,
// all orders are handled, and what is printed, written and returned agrees.
func TestSoak(t *testing.T) {
	t.Parallel()
	kind := testenv.OwnConfig(t).Kind
	dir := t.TempDir()
	file, page := filepath.Join(dir, "soak.json"), filepath.Join(dir, "chaos.md")
	if err := os.WriteFile(page, []byte("# Page\n\n<!-- soak -->\n<!-- /soak -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const orders, cancelled = 3000, 150
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs([]string{"soak", "--orders", "3000", "--rate", "200", "--json", "--report", file, "--servers", string(kind)})
	cmd.SetOut(&out)
	cmd.SetErr(lines(func(line string) {
		t.Log(line)
		if kept, ok := strings.CutPrefix(line, "logs are kept in "); ok {
			t.Cleanup(func() { os.RemoveAll(kept) })
		}
	}))
	err := cmd.ExecuteContext(t.Context())

	var rep soak.Report
	if jsonErr := json.Unmarshal(out.Bytes(), &rep); jsonErr != nil {
		t.Fatalf("%v: %v\n%s", err, jsonErr, &out)
	}
	if code := exitCode(1); rep.OK && err != nil || !rep.OK && !(errors.As(err, &code) && code == 1) {
		t.Errorf("the verdict is %t, and the command ended with %v", rep.OK, err)
	}
	c := rep.Check
	if !c.OK || rep.Accepted != orders || c.Orders != orders || c.Released+c.CancelledFirst != cancelled || c.Reserved != orders-cancelled {
		t.Errorf("%s", rep.Text())
	}
	if rep.OK != (len(rep.Grown)+len(rep.Problems) == 0) || rep.Origin.Versions["postgresql"] == "" || rep.Origin.Commit == "" {
		t.Errorf("the verdict is %t, and the report %+v", rep.OK, rep)
	}
	seen := map[string]bool{}
	for _, f := range rep.Figures {
		seen[f.What] = seen[f.What] || f.Quarters[3] > 0
	}
	for _, what := range soak.Whats() {
		if there, measured := seen[what]; !measured || !there && !strings.HasPrefix(what, "messages") && !strings.HasPrefix(what, "rows") {
			t.Errorf("no figure for %s", what)
		}
	}
	if err := os.WriteFile(page, []byte("# Page\n\n<!-- soak -->\nold\n<!-- /soak -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	again := command()
	again.SetArgs([]string{"soak", "--render", file})
	if err := again.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := record.Section(text, "soak", rep.Markdown()); err != nil || string(want) != string(text) {
		t.Errorf("the page is not that of the report: %v\n%s", err, text)
	}
}

func TestSoakRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"--rate 0", "--orders 0", "--minutes -1", "--orders 5 --minutes 5", "--rate fast", "now"} {
		cmd := command()
		cmd.SetArgs(append([]string{"soak"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("soak %s is accepted", args)
		}
	}
}

// lines gives what is written to a function, by line.
type lines func(line string)

func (l lines) Write(p []byte) (int, error) {
	l(strings.TrimSpace(string(p)))
	return len(p), nil
}
