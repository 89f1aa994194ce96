// Package baton_test holds what is true of the whole tree.
package baton_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "example.com/baton/"

// The direction of imports: cmd → services → shared, never back; services never
// import each other; outbox and inbox know neither each other nor AMQP; what
// strangers copy needs nothing that they cannot have.
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
