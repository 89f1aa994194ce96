package readme

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"example.com/baton/internal/check"
)

// both are the pages that say the same in two languages.
var both = []string{"README.md", "README.zh.md"}

// Every flag of both services, with its variable and its default, as -h has it.
func TestSettings(t *testing.T) {
	t.Parallel()
	heads := map[string][]string{
		"README.md":    {"flag", "variable", "order", "inventory", "meaning"},
		"README.zh.md": {"参数", "环境变量", "订单", "库存", "含义"},
	}
	for column, service := range []string{"order", "inventory"} {
		help := helpOf(t, service)
		for _, page := range both {
			shown := map[string]setting{}
			for _, row := range rows(t, read(t, page), heads[page]...) {
				value := row[2+column]
				if value == "–" {
					continue
				}
				variables := strings.Split(row[1], ", ")
				s := setting{variable: variables[min(column, len(variables)-1)], value: value}
				if d, err := time.ParseDuration(value); err == nil {
					s.value = d.String()
				}
				shown[strings.TrimPrefix(row[0], "--")] = s
			}
			if diff := gocmp.Diff(help, shown, gocmp.AllowUnexported(setting{})); diff != "" {
				t.Errorf("settings of %s (-its help +%s):\n%s", service, page, diff)
			}
		}
	}
}

type setting struct{ variable, value string }

// helpOf is what a service's -h says of its flags.
func helpOf(t *testing.T, service string) map[string]setting {
	t.Helper()
	cmd := exec.Command("go", "run", "./cmd/"+service, "-h")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	found := map[string]setting{}
	for _, m := range regexp.MustCompile(`(?m)^  -(\S+)( \S+)?\n\s+(.+)$`).FindAllStringSubmatch(string(out), -1) {
		name, isBool, usage := m[1], m[2] == "", m[3]
		s := setting{variable: "none", value: "none"}
		if v := regexp.MustCompile(`\(\$([A-Z_]+)\)`).FindStringSubmatch(usage); v != nil {
			s.variable = v[1]
		}
		switch v := regexp.MustCompile(`\(default "?([^")]+)"?\)$`).FindStringSubmatch(usage); {
		case v != nil:
			s.value = v[1]
		case isBool:
			s.value = "false"
		case strings.Contains(usage, "required"):
			s.value = "required"
		}
		found[name] = s
	}
	return found
}

// The limits of HTTP are the constants of the services, in the order of the
// table.
func TestLimits(t *testing.T) {
	t.Parallel()
	heads := map[string][]string{"README.md": {"limit", "order", "inventory"}, "README.zh.md": {"上限", "订单", "库存"}}
	source := [2]string{
		read(t, "services/order/run.go") + read(t, "services/order/input.go") + read(t, "cmd/order/settings.go"),
		read(t, "services/inventory/run.go"),
	}
	for _, page := range both {
		table := rows(t, read(t, page), heads[page]...)
		names := []string{
			"readHeaderTimeout", "readTimeout", "writeTimeout", "idleTimeout",
			"maxHeaderBytes", "maxBody", "requestTimeout", "shutdownTimeout",
		}
		if len(table) != len(names) {
			t.Fatalf("%s has %d limits, want %d", page, len(table), len(names))
		}
		for i, name := range names {
			for column, text := range source {
				want := limit(text, name)
				if name == "requestTimeout" && column == 0 {
					// A setting there, with its default in TestSettings.
					m := regexp.MustCompile(`"request-timeout", (\d+)\*time\.Second`).FindStringSubmatch(text)
					want = m[1] + " s"
				}
				if got := table[i][1+column]; got != want {
					t.Errorf("%s: %s: %q, want %q by %s", page, table[i][0], got, want, name)
				}
			}
		}
	}
}

func limit(source, name string) string {
	if m := regexp.MustCompile(`\b` + name + `\s+= (\d+) \* time\.Second`).FindStringSubmatch(source); m != nil {
		return m[1] + " s"
	}
	if m := regexp.MustCompile(`\b` + name + `\s+= (\d+) << 10`).FindStringSubmatch(source); m != nil {
		return m[1] + " KiB"
	}
	return "–"
}

// Go code in the pages is part of an example that is compiled and run.
func TestQuotedCode(t *testing.T) {
	t.Parallel()
	var examples []string
	files, err := filepath.Glob(filepath.Join(root, "shared/*/example_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		examples = append(examples, string(text))
	}
	for _, page := range both {
		quoted := 0
		for _, b := range blocks(read(t, page)) {
			if b.info != "go" {
				continue
			}
			quoted++
			if !slices.ContainsFunc(examples, func(e string) bool { return strings.Contains(e, b.text) }) {
				t.Errorf("%s:%d: this code is in no shared/*/example_test.go:\n%s", page, b.line, b.text)
			}
		}
		if quoted == 0 {
			t.Errorf("%s quotes nothing", page)
		}
	}
}

// The map of the tree leads to what is there, and leaves out no folder with code.
func TestMap(t *testing.T) {
	t.Parallel()
	for page, head := range map[string][]string{"README.md": {"path", "what"}, "README.zh.md": {"路径", "内容"}} {
		var known []string
		for _, row := range rows(t, read(t, page), head...) {
			for _, place := range strings.Split(row[0], ", ") {
				known = append(known, place)
				if _, err := os.Stat(filepath.Join(root, place)); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
		}
		for dir := range goFolders(t) {
			if dir != "." && !slices.ContainsFunc(known, func(k string) bool { return dir == k || strings.HasPrefix(dir, k+"/") }) {
				t.Errorf("%s does not say what %s is", page, dir)
			}
		}
	}
}

// goFolders are the folders with Go code, and all Go files but tests.
func goFolders(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && name != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if err == nil && path.Ext(name) == ".go" {
			files := found[path.Dir(name)]
			if !strings.HasSuffix(name, "_test.go") {
				files = append(files, name)
			}
			found[path.Dir(name)] = files
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Links lead somewhere.
func TestLinks(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(read(t, page), -1) {
			link := m[1]
			if strings.Contains(link, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(link, "#")
			target := cmp.Or(file, path.Base(page))
			target = path.Join(path.Dir(page), target)
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: %s: %v", page, link, err)
			} else if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: there is no heading for %s", page, link)
			}
		}
	}
}

// anchors are those that GitHub gives to headings.
func anchors(page string) (found []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(page, -1) {
		plain := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found = append(found, strings.ReplaceAll(plain, " ", "-"))
	}
	return found
}

// The walk of docs/architecture.md passes functions that are where it says.
func TestWalkOfTheCode(t *testing.T) {
	t.Parallel()
	places := regexp.MustCompile("`([a-z/_]+\\.go)`:\\s+`(\\w+)`").FindAllStringSubmatch(read(t, "docs/architecture.md"), -1)
	if len(places) < 25 {
		t.Fatalf("only %d functions found", len(places))
	}
	for _, m := range places {
		if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + m[2] + `\(`).MatchString(read(t, m[1])) {
			t.Errorf("%s has no function %s", m[1], m[2])
		}
	}
}

// Every line of level WARN or ERROR that a service can log is in
// docs/operations.md, and no other.
func TestLogLines(t *testing.T) {
	t.Parallel()
	logged := map[string]string{}
	call := regexp.MustCompile(`\.(Error|Warn)(?:Context)?\((?:[^",()]*(?:\(\))?, )?"([^"]+)"`)
	for dir, files := range goFolders(t) {
		if !strings.HasPrefix(dir, "services/") && !strings.HasPrefix(dir, "shared/") {
			continue
		}
		for _, file := range files {
			for _, m := range call.FindAllStringSubmatch(read(t, file), -1) {
				logged[m[2]] = strings.ToUpper(m[1])
			}
		}
	}
	explained := map[string]string{}
	for _, row := range rows(t, read(t, "docs/operations.md"), "level", "message", "what it means, and what to do") {
		explained[row[1]] = row[0]
	}
	if diff := gocmp.Diff(logged, explained); diff != "" {
		t.Errorf("log lines (-in the code +in docs/operations.md):\n%s", diff)
	}
}

// The runbook of docs/operations.md has every rule of the checker.
func TestRules(t *testing.T) {
	t.Parallel()
	var explained []check.Rule
	for _, row := range rows(t, read(t, "docs/operations.md"), "rule", "what must be true", "what to do when it is not") {
		explained = append(explained, check.Rule{Name: row[0], Meaning: row[1]})
	}
	if diff := gocmp.Diff(check.Rules(), explained); diff != "" {
		t.Errorf("rules (-in the code +in docs/operations.md):\n%s", diff)
	}
}

// The numbers that the pages take from the code.
func TestNumbers(t *testing.T) {
	t.Parallel()
	relay, consumer := read(t, "shared/outbox/relay.go"), read(t, "shared/rabbit/consumer.go")
	for _, tt := range []struct{ source, code, page, text string }{
		{relay, `cmp.Or(r.Budget, 12)`, "docs/operations.md", "at the twelfth time"},
		{relay, `cmp.Or(r.BatchSize, 500)`, "docs/architecture.md", "takes up to 500 rows"},
		{relay, `cmp.Or(r.Drain, 10*time.Second)`, "docs/architecture.md", "what was sent is settled (up to 10 s)"},
		{consumer, `cmp.Or(c.Batch, 250)`, "docs/architecture.md", "up to 250, without waiting"},
		{read(t, "shared/outbox/claim.go"), `const killerAfter = 10`, "docs/architecture.md", "Ten of those"},
		{read(t, "shared/rabbit/publisher.go"), `cmp.Or(p.ConfirmTimeout, 15*time.Second)`, "docs/architecture.md", "no confirm within 15 s"},
		{read(t, "shared/rabbit/topology.go"), `cmp.Or(q.Retries, 3)`, "docs/architecture.md", "at the 4th delivery"},
		{read(t, "services/order/config.go"), `pc.MaxConns = 16`, "README.md", "a process of order takes up to 16"},
		{read(t, "services/inventory/config.go"), `pc.MaxConns = 8`, "README.md", "one of inventory up to 8"},
		{read(t, "services/order/input.go"), `maxItems    = 100`, "README.md", "An order has 1–100 items"},
		{read(t, "go.mod"), "\ngo 1.26", "README.md", "You need Go 1.26"},
	} {
		if !strings.Contains(tt.source, tt.code) {
			t.Errorf("the code no longer says %q; %s says %q", tt.code, tt.page, tt.text)
		}
		if !strings.Contains(read(t, tt.page), tt.text) {
			t.Errorf("%s no longer says %q", tt.page, tt.text)
		}
	}
}

// A page that shows a table is read as one, so that TestSettings and its like do
// not pass by looking at nothing.
func TestRows(t *testing.T) {
	t.Parallel()
	page := "# x\n\n| a | b |\n|---|---|\n| `1` | two |\n| 3 | `4` |\n\nend\n"
	var got bytes.Buffer
	for _, row := range rows(t, page, "a", "b") {
		fmt.Fprintln(&got, strconv.Quote(strings.Join(row, "/")))
	}
	if want := "\"1/two\"\n\"3/4\"\n"; got.String() != want {
		t.Errorf("rows %s, want %s", &got, want)
	}
}
