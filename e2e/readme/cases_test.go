package readme

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var caseID = regexp.MustCompile(`\bB\d{2,3}\b`)

// docs/cases.md and the tests, both ways: what a row names exists and has the
// row's id in its comment, and whoever has an id in its comment is in that row.
func TestCases(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/cases.md")
	named := make(map[string][]string) // tests, by id
	for line := range strings.Lines(page) {
		row := cells(strings.TrimSpace(line))
		if len(row) != 4 || !caseID.MatchString(row[0]) {
			continue
		}
		id := row[0]
		if _, twice := named[id]; twice {
			t.Errorf("%s has two rows", id)
		}
		named[id] = strings.Split(row[3], ", ")
		if !regexp.MustCompile(`[\w.-]+/[\w.-]+ #\d+`).MatchString(row[1]) {
			t.Errorf("%s does not say where it was seen", id)
		}
	}
	if len(named) < 60 {
		t.Fatalf("%d cases found on the page", len(named))
	}

	commented, others := commentedTests(t)
	for id, tests := range named {
		for _, test := range tests {
			if !commented[test][id] {
				t.Errorf("%s names %s: there is no such test, or it does not name the case", id, test)
			}
		}
	}
	for test, ids := range commented {
		for id := range ids {
			if !slices.Contains(named[id], test) {
				t.Errorf("the comment of %s has %s, whose row does not name it", test, id)
			}
		}
	}
	for id := range others {
		if named[id] == nil {
			t.Errorf("a comment in a test file has %s, and the page does not", id)
		}
	}
}

// commentedTests are the ids in the comments of each test, at its head and in
// it, and those in any other comment of a test file. Tests of one name in several
// packages count as one.
func commentedTests(t *testing.T) (tests map[string]map[string]bool, others map[string]bool) {
	t.Helper()
	tests, others = make(map[string]map[string]bool), make(map[string]bool)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, comment := range file.Comments {
			ids := caseID.FindAllString(comment.Text(), -1)
			if len(ids) == 0 {
				continue
			}
			into := others
			for _, decl := range file.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if !ok || !strings.HasPrefix(f.Name.Name, "Test") || (f.Doc != comment && (comment.Pos() < f.Pos() || comment.End() > f.End())) {
					continue
				}
				if tests[f.Name.Name] == nil {
					tests[f.Name.Name] = make(map[string]bool)
				}
				into = tests[f.Name.Name]
			}
			for _, id := range ids {
				into[id] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(tests) == 0 {
		t.Fatal("no test names a case: ", slices.Collect(maps.Keys(others)))
	}
	return tests, others
}
