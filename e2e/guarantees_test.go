package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGuaranteesNameTests holds docs/guarantees.md and the tests together: every
// test that the page names exists, and every crash is on the page.
func TestGuaranteesNameTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, m := range regexp.MustCompile("`(Test[A-Z][^`]*)`").FindAllStringSubmatch(string(page), -1) {
		named = append(named, m[1])
	}
	if len(named) < len(crashes) {
		t.Fatalf("the page names %d tests, fewer than there are crashes", len(named))
	}

	subtests := map[string][]string{"TestKillerRow": killerSteps}
	for _, c := range crashes {
		subtests["TestCrash"] = append(subtests["TestCrash"], c.service+"/"+c.step)
	}
	for _, s := range stalls {
		subtests["TestStall"] = append(subtests["TestStall"], s.step)
	}
	for _, s := range services {
		subtests["TestCrashAtRetry"] = append(subtests["TestCrashAtRetry"], s.name)
		subtests["TestCrashAtDeadLetter"] = append(subtests["TestCrashAtDeadLetter"], s.name)
	}
	tests := testsOf(t, "..")
	for _, name := range named {
		test, sub, _ := strings.Cut(name, "/")
		if !tests[test] || sub != "" && !slices.Contains(subtests[test], sub) {
			t.Errorf("the page names %s, and there is no such test", name)
		}
	}
	for test, subs := range subtests {
		for _, sub := range subs {
			if !slices.Contains(named, test+"/"+sub) {
				t.Errorf("the page does not name %s/%s", test, sub)
			}
		}
	}
}

// testsOf finds the test functions under dir.
func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(source, -1) {
			found[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
