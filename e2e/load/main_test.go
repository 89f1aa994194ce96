// Package load gives the services more than they are made for, one kind at a
// time: clients that drip, bodies without end, one request for the twenty
// thousandth time, two connections for everything, a pooler in between. Each has
// its line in docs/operations.md. BATON_NIGHTLY=1 makes the loads as large as
// they are there.
package load

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(system.Main(m)) }

// patience is for what takes a second or two on an idle machine.
const patience = 60 * time.Second

// many is how many of something there are.
func many(usually, atNight int) int {
	if os.Getenv("BATON_NIGHTLY") == "1" {
		return atNight
	}
	return usually
}

// level is what a process holds of what connections and requests are made of.
type level struct{ goroutines, files float64 }

func levelOf(p *system.Process) (level, error) {
	goroutines, err := p.ReadMetric("go_goroutines")
	if err != nil {
		return level{}, err
	}
	files, err := p.ReadMetric("process_open_fds")
	return level{goroutines, files}, err
}

// wantBackAt waits until a process holds what it held before, give or take what
// its pools and the broker's client open as they like.
func wantBackAt(t *testing.T, p *system.Process, before level) {
	t.Helper()
	const slack = 20
	testenv.Eventually(t, patience, p.Name+" holds no more than before", func() error {
		now, err := levelOf(p)
		if err == nil && (now.goroutines > before.goroutines+slack || now.files > before.files+slack) {
			err = fmt.Errorf("%.0f goroutines and %.0f open files, before %.0f and %.0f", now.goroutines, now.files, before.goroutines, before.files)
		}
		return err
	})
}

// wantAccepted places n orders as a correct client does, and fails if one of
// them needed a second request.
func wantAccepted(t *testing.T, s *system.System, n int) {
	t.Helper()
	for _, o := range s.Place(n) {
		if o.Tries > 1 {
			t.Errorf("order %s took %d requests, want one", o.OrderID, o.Tries)
		}
	}
}

// operations.md names tests that there are, and all of this package.
func TestTableNamesTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## What happens under load\n")
	if !found {
		t.Fatal("docs/operations.md has no section for it")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(section, -1) {
		named[m[1]] = true
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	const elsewhere = "../../services/order/place_test.go"
	for _, file := range append(files, elsewhere) {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t `).FindAllStringSubmatch(string(source), -1) {
			if file != elsewhere && m[1] != t.Name() && !named[m[1]] {
				t.Errorf("docs/operations.md does not name %s", m[1])
			}
			delete(named, m[1])
		}
	}
	for name := range named {
		t.Errorf("docs/operations.md names %s, which is not there", name)
	}
}
