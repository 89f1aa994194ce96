package compose

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The files a project is made of, from the root of the repository.
const (
	base  = "docker-compose.yml"
	scale = "docker-compose.scale.yml"
	ports = "e2e/compose/testdata/ports.yml"
)

// passwords are all that docker-compose.yml can be told.
var passwords = []string{
	"POSTGRES_PASSWORD", "RABBITMQ_DEFAULT_PASS",
	"ORDER_OWNER_PASSWORD", "ORDER_DATABASE_PASSWORD", "ORDER_AMQP_PASSWORD",
	"INVENTORY_OWNER_PASSWORD", "INVENTORY_DATABASE_PASSWORD", "INVENTORY_AMQP_PASSWORD",
	"BATON_AUDIT_PASSWORD",
}

// project is docker-compose.yml under a name of its own, on free ports and with
// passwords that nothing else has.
type project struct {
	root, name string
	files      []string          // those of the last up
	password   map[string]string // by variable
	said       bytes.Buffer      // logs of containers that are gone, and answers
}

// newProject starts nothing yet. What is started later is removed with the test.
func newProject(t *testing.T) *project {
	t.Helper()
	// A variable of this test, and not that an engine answers: the walk takes
	// minutes and has its own place in CI.
	if os.Getenv("BATON_TEST_COMPOSE") == "" {
		t.Skip("takes minutes and a Docker engine, so it runs only with BATON_TEST_COMPOSE=1; .ci/run has a part of its own for it")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	p := &project{
		root: root,
		// CI names it, to clean up even after a test that was killed.
		name:     os.Getenv("COMPOSE_PROJECT_NAME"),
		files:    []string{base, ports},
		password: map[string]string{},
	}
	if p.name == "" {
		p.name = "baton-walk-" + strings.ToLower(rand.Text()[:8])
	}
	for _, variable := range passwords {
		p.password[variable] = "S3cr3t" + rand.Text()
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if t.Failed() {
			out, _ := p.command(ctx, "logs", "--no-color", "--tail", "60").CombinedOutput() // it only adds to a failure
			t.Logf("the containers' last words:\n%s", out)
		}
		down := p.command(ctx, "down", "--volumes", "--remove-orphans", "--rmi", "local", "--timeout", "5")
		if out, err := down.CombinedOutput(); err != nil {
			t.Errorf("clean up: %v\n%s", err, out)
		}
	})
	return p
}

func (p *project) command(ctx context.Context, args ...string) *exec.Cmd {
	all := []string{"compose", "--ansi", "never", "--project-name", p.name}
	for _, f := range p.files {
		all = append(all, "--file", f)
	}
	cmd := exec.CommandContext(ctx, "docker", append(all, args...)...)
	cmd.Dir = p.root
	// Port 0 is any free one.
	cmd.Env = append(os.Environ(), "ORDER_PORT=0", "INVENTORY_PORT=0", "RABBITMQ_PORT=0", "BUILDKIT_PROGRESS=plain")
	for variable, value := range p.password {
		cmd.Env = append(cmd.Env, variable+"="+value)
	}
	return cmd
}

// run runs docker compose and returns its standard output.
func (p *project) run(t *testing.T, args ...string) string {
	t.Helper()
	return output(t, p.command(t.Context(), args...))
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// up is docker compose up --wait with these files, and more arguments.
func (p *project) up(t *testing.T, files []string, args ...string) {
	t.Helper()
	p.files = files
	start := time.Now()
	p.run(t, append([]string{"up", "--wait", "--wait-timeout", "180"}, args...)...)
	t.Logf("up --wait %s: %.1f s", strings.Join(args, " "), time.Since(start).Seconds())
}

// down removes the containers and keeps their logs for the search for passwords.
func (p *project) down(t *testing.T) {
	t.Helper()
	p.keepLogs(t)
	p.run(t, "down")
}

func (p *project) keepLogs(t *testing.T) {
	t.Helper()
	p.said.WriteString(p.run(t, "logs", "--no-color"))
}

// address is where a container's port is reached.
func address(t *testing.T, container string, port int) string {
	t.Helper()
	return output(t, exec.CommandContext(t.Context(), "docker", "port", container, fmt.Sprint(port)))
}

// containers are the ids of a service's containers, with those that have ended.
func (p *project) containers(t *testing.T, service string) []string {
	t.Helper()
	return strings.Fields(p.run(t, "ps", "--all", "--quiet", service))
}

// inspection is what the test asks of docker inspect.
type inspection struct {
	Name         string
	RestartCount int
	State        struct{ Pid, ExitCode int }
	Config       struct{ User string }
	HostConfig   struct{ ReadonlyRootfs bool }
}

func inspect(t *testing.T, container string) inspection {
	t.Helper()
	var found []inspection
	out := output(t, exec.CommandContext(t.Context(), "docker", "inspect", container))
	if err := json.Unmarshal([]byte(out), &found); err != nil || len(found) != 1 {
		t.Fatalf("docker inspect %s: %v, %d found", container, err, len(found))
	}
	return found[0]
}

// call sends a request and decodes the answer into out, unless that is nil. A
// status other than want is an error.
func (p *project) call(ctx context.Context, want int, method, url, body string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	p.said.Write(data)
	switch {
	case resp.StatusCode != want:
		return fmt.Errorf("%s %s: %s, want %d: %s", method, req.URL.Path, resp.Status, want, data)
	case out == nil:
		return nil
	}
	return json.Unmarshal(data, out)
}

func (p *project) get(t *testing.T, url string, out any) {
	t.Helper()
	if err := p.call(t.Context(), http.StatusOK, http.MethodGet, url, "", out); err != nil {
		t.Fatal(err)
	}
}
