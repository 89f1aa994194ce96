// Package baton_test holds what is true of the whole tree.
package baton_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "example.com/baton/"

// The direction of imports: cmd → services → shared, never back; services never
// import each other; outbox and inbox know neither each other nor AMQP; what
// strangers copy needs nothing that they cannot have; and the mistakes in labs
// are in nobody's way.
func TestDirectionOfImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	pgxOnly := []string{"github.com/jackc/pgx/v5", "github.com/google/uuid"}
	rules := []struct {
		pkg   string
		own   []string // the packages of this module that it may import
		third []string // the others, nil for any
	}{
		{"shared/outbox", nil, pgxOnly},
		{"shared/inbox", nil, pgxOnly},
		{"shared/events", nil, []string{"github.com/go-json-experiment/json", "github.com/oklog/ulid/v2"}},
		{"shared/rabbit", []string{"shared/outbox"}, []string{"github.com/rabbitmq/amqp091-go"}},
		{"services/order", []string{"shared/", "internal/", "migrations/order"}, nil},
		{"services/inventory", []string{"shared/", "internal/", "migrations/inventory"}, nil},
		{"cmd/order", []string{"services/order", "internal/"}, nil},
		{"cmd/inventory", []string{"services/inventory", "internal/"}, nil},
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg := strings.TrimPrefix(fields[0], module)
		for _, rule := range rules {
			if rule.pkg != pkg {
				continue
			}
			seen++
			for _, imported := range fields[1:] {
				own, isOwn := strings.CutPrefix(imported, module)
				third := strings.Contains(strings.Split(imported, "/")[0], ".")
				switch {
				case isOwn && !hasPrefix(own, rule.own):
					t.Errorf("%s imports %s", pkg, imported)
				case !isOwn && third && rule.third != nil && !hasPrefix(imported, rule.third):
					t.Errorf("%s imports %s, which a stranger who copies it would need too", pkg, imported)
				}
			}
		}
		if strings.HasPrefix(pkg, "internal/") || strings.HasPrefix(pkg, "shared/") {
			for _, imported := range fields[1:] {
				if strings.HasPrefix(imported, module+"services/") || strings.HasPrefix(imported, module+"cmd/") {
					t.Errorf("%s imports %s: the direction is cmd, services, shared", pkg, imported)
				}
			}
		}
		if !strings.HasPrefix(pkg, "labs/") && pkg != "cmd/baton" {
			for _, imported := range fields[1:] {
				if strings.HasPrefix(imported, module+"labs/") {
					t.Errorf("%s imports %s: what is there is wrong on purpose", pkg, imported)
				}
			}
		}
		for _, bad := range []string{"util", "common", "helper", "helpers", "models"} {
			if slices.Contains(strings.Split(pkg, "/"), bad) {
				t.Errorf("package %s says nothing of what it is for", pkg)
			}
		}
	}
	if seen != len(rules) {
		t.Errorf("%d of %d packages found", seen, len(rules))
	}
}

func hasPrefix(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(path, p) })
}

// B52, B57: nothing needs what newer brokers refuse, queues that are neither
// durable nor exclusive and a prefetch for a whole channel; and no message has an
// expiry of its own, which a classic queue looks at only at its head.
func TestNoOldBrokerFeatures(t *testing.T) {
	t.Parallel()
	files, declares := token.NewFileSet(), 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				// Tests send one as a stranger may.
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Expiration" && !strings.HasSuffix(path, "_test.go") {
					t.Errorf("%s: a message with an expiry of its own", files.Position(n.Pos()))
				}
			case *ast.CallExpr:
				method, ok := n.Fun.(*ast.SelectorExpr)
				if !ok {
					break
				}
				is := func(argument int, value string) bool {
					name, ok := n.Args[argument].(*ast.Ident)
					return ok && name.Name == value
				}
				switch method.Sel.Name {
				case "QueueDeclare":
					declares++
					if is(1, "false") && is(3, "false") {
						t.Errorf("%s: a queue that is neither durable nor exclusive", files.Position(n.Pos()))
					}
				case "Qos":
					if !is(2, "false") {
						t.Errorf("%s: a prefetch that may be for the whole channel", files.Position(n.Pos()))
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if declares == 0 {
		t.Error("no queue is declared anywhere: has the library changed its names?")
	}
}
