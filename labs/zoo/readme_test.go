package zoo

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/internal/check"
)

// entry is what a page, or a file, says of a mistake.
type entry struct{ Name, File, Rule, Right string }

// Both pages have a line for each mistake, with its file, the rule that catches
// it and where it is done right, as the file itself has it.
func TestPages(t *testing.T) {
	t.Parallel()
	var want []entry
	for _, m := range Mistakes() {
		e := entry{Name: m.Name, File: strings.ReplaceAll(m.Name, "-", "_") + ".go", Rule: m.Rule}
		right := regexp.MustCompile(`(?m)^// Right: (\S+\.go): (\w+)$`).FindStringSubmatch(read(t, e.File))
		if right == nil {
			t.Fatalf("%s does not say where it is done right", e.File)
		}
		e.Right = right[1] + ": " + right[2]
		if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + right[2] + `\(`).MatchString(read(t, "../../"+right[1])) {
			t.Errorf("%s says that it is done right in %s, and there is no such function", e.File, e.Right)
		}
		if !slices.ContainsFunc(check.Rules(), func(r check.Rule) bool { return r.Name == m.Rule }) {
			t.Errorf("%s is to be caught by the rule %s, and there is no such rule", m.Name, m.Rule)
		}
		want = append(want, e)
	}
	line := regexp.MustCompile("(?m)^\\| (\\S+) \\| \\[(\\S+)\\]\\((\\S+)\\) \\| .+ \\| `(\\S+)` \\| `(\\S+)`: `(\\w+)` \\|$")
	for _, page := range []string{"README.md", "README.zh.md"} {
		var got []entry
		for _, m := range line.FindAllStringSubmatch(read(t, page), -1) {
			if m[2] != m[3] {
				t.Errorf("%s: %s leads to %s", page, m[2], m[3])
			}
			got = append(got, entry{m[1], m[2], m[4], m[5] + ": " + m[6]})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-code +page):\n%s", page, diff)
		}
		for _, link := range regexp.MustCompile(`\]\(([^)#]+)`).FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat(link[1]); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// Every file is a mistake, or is known to be none.
func TestFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"harness.go", "zoo.go"}
	for _, m := range Mistakes() {
		want = append(want, strings.ReplaceAll(m.Name, "-", "_")+".go")
		if !strings.Contains(strings.ToLower(read(t, want[len(want)-1])), "the mistake") {
			t.Errorf("%s does not point at the mistake", want[len(want)-1])
		}
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	slices.Sort(want)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-of the mistakes +here):\n%s", diff)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
