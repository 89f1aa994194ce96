// Package record is what the reports of long runs have in common: where they
// come from, and the pages that are rendered from them.
package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Origin says of a report what it takes to repeat the run.
type Origin struct {
	Command  string            `json:"command"`
	Date     string            `json:"date"`     // UTC
	Commit   string            `json:"commit"`   // with "-dirty" if files were changed
	Versions map[string]string `json:"versions"` // of "go" and the servers
	Machine  string            `json:"machine"`
}

// NewOrigin finds out about this program, this machine and the clone that the
// working directory is in. Versions are those of the servers.
func NewOrigin(ctx context.Context, versions map[string]string) Origin {
	o := Origin{
		Command:  strings.Join(append([]string{"./baton"}, os.Args[1:]...), " "),
		Date:     time.Now().UTC().Format("2006-01-02 15:04"),
		Commit:   "unknown",
		Versions: map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")},
		Machine:  machine(),
	}
	for name, version := range versions {
		o.Versions[name] = version
	}
	git := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty")
	if out, err := git.Output(); err == nil { // a copy without its history has no commit
		o.Commit = strings.TrimSpace(string(out))
	}
	return o
}

func machine() string {
	parts := []string{fmt.Sprintf("%d cores", runtime.NumCPU())}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int64
		if _, err := fmt.Sscanf(string(data), "MemTotal: %d kB", &kib); err == nil {
			parts = append(parts, fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20)))
		}
	}
	system := runtime.GOOS + "/" + runtime.GOARCH
	if data, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		system += " " + strings.TrimSpace(string(data))
	}
	return strings.Join(append(parts, system), ", ")
}

// Markdown is the origin as a list.
func (o Origin) Markdown() string {
	return fmt.Sprintf("- `%s`\n- %s UTC, commit %s\n- PostgreSQL %s, RabbitMQ %s, Go %s\n- %s\n",
		o.Command, o.Date, o.Commit, o.Versions["postgresql"], o.Versions["rabbitmq"], o.Versions["go"], o.Machine)
}

// Write writes a report as JSON to path, and sets the section called name of the
// page, a Markdown file in the same folder, to text.
func Write(path string, report any, page, name, text string) error {
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return err
	}
	page = filepath.Join(filepath.Dir(path), page)
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	rendered, err := Section(old, name, text)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, rendered, 0o644)
}

// Read reads a report that Write has written.
func Read(path string, report any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, report); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Section returns the page with the section called name set to text. The page
// marks it by two comments, "<!-- name -->" and "<!-- /name -->".
func Section(page []byte, name, text string) ([]byte, error) {
	before, rest, ok := bytes.Cut(page, []byte("<!-- "+name+" -->\n"))
	_, after, ok2 := bytes.Cut(rest, []byte("<!-- /"+name+" -->\n"))
	if !ok || !ok2 {
		return nil, errors.New("no section " + name)
	}
	return fmt.Appendf(nil, "%s<!-- %s -->\n%s\n<!-- /%s -->\n%s", before, name, strings.TrimSpace(text), name, after), nil
}
