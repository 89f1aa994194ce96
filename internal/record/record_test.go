package record_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/baton/internal/record"
)

func TestSection(t *testing.T) {
	t.Parallel()
	page := "a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\n<!-- /y -->\n"
	want := "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n<!-- y -->\n<!-- /y -->\n"
	for range 2 { // the second changes nothing
		got, err := record.Section([]byte(page), "x", "\nnew\n\n")
		if err != nil || string(got) != want {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
		page = string(got)
	}
	if _, err := record.Section([]byte(page), "z", ""); err == nil || !strings.Contains(err.Error(), "z") {
		t.Errorf("a section that is not there: %v", err)
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	if err := os.WriteFile(page, []byte("<!-- x -->\n<!-- /x -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "x.json")
	if err := record.Write(data, map[string]int{"n": 1}, "page.md", "x", "one"); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{data: "{\n  \"n\": 1\n}\n", page: "<!-- x -->\none\n<!-- /x -->\n"} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", file, got, err, want)
		}
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	o := record.NewOrigin(t.Context(), map[string]string{"postgresql": "15.1", "rabbitmq": "3.10.8"})
	if o.Commit == "" || o.Versions["go"] == "" || !strings.Contains(o.Machine, "cores") {
		t.Errorf("origin %+v", o)
	}
	for _, want := range []string{o.Command, o.Commit, "PostgreSQL 15.1, RabbitMQ 3.10.8"} {
		if !strings.Contains(o.Markdown(), want) {
			t.Errorf("%q is not in %s", want, o.Markdown())
		}
	}
}
