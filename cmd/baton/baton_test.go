package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/baton/internal/servers"
	"example.com/baton/internal/stack"
	"example.com/baton/internal/testenv"
)

// The test program also plays baton, so that no other has to be built.
func TestMain(m *testing.M) {
	if os.Getenv("BATON_TEST_PLAY") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// playing is a baton that runs.
type playing struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed then; only its exit code is of interest

	mu  sync.Mutex
	out bytes.Buffer
}

func (p *playing) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *playing) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func clone(t *testing.T) string {
	t.Helper()
	dir, err := servers.ClonePath(".")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// start plays baton in the clone.
func start(t *testing.T, args ...string) *playing {
	t.Helper()
	return startIn(t, clone(t), args...)
}

// startIn plays baton in a directory. It is ended with the test, and its
// children with it.
func startIn(t *testing.T, dir string, args ...string) *playing {
	t.Helper()
	p := &playing{cmd: exec.Command(os.Args[0], args...), ended: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), "BATON_TEST_PLAY=1")
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it should have ended by now
		<-p.ended
		if t.Failed() {
			t.Logf("baton %s:\n%s", strings.Join(args, " "), p.output())
		}
	})
	return p
}

// end waits until baton has ended and returns its exit code.
func (p *playing) end(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(60 * time.Second):
		t.Fatal("baton does not end")
		return 0
	}
}

func (p *playing) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (p *playing) says(t *testing.T, text string) {
	t.Helper()
	testenv.Eventually(t, 3*time.Minute, fmt.Sprintf("baton says %q", text), func() error {
		if strings.Contains(p.output(), text) {
			return nil
		}
		select {
		case <-p.ended:
			t.Fatalf("baton ended without saying %q", text)
		default:
		}
		return errors.New("it has not")
	})
}

func play(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	p := start(t, args...)
	code = p.end(t)
	return p.output(), code
}

func local(t *testing.T) {
	t.Helper()
	testenv.Shared(t) // skips where nothing can be started
	if os.Getenv(servers.TestServersVar) != string(servers.Local) {
		t.Skip("up starts processes of this machine here, whose programs a run with servers in containers need not have; " +
			"e2e/compose is about up in containers")
	}
}

// instance are the flags of a Baton that no other on this machine meets.
func instance(t *testing.T) (flags []string, orderURL, inventoryURL string) {
	t.Helper()
	name := "test" + strconv.FormatInt(time.Now().UnixNano(), 36)
	order, inventory := freeAddr(t), freeAddr(t)
	t.Cleanup(func() {
		if out, code := play(t, "reset", "--local", "--name", name); code != 0 {
			t.Errorf("reset: %s", out)
		}
	})
	return []string{"--local", "--name", name, "--order-addr", order, "--inventory-addr", inventory}, "http://" + order, "http://" + inventory
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

const lastLine = "Ctrl-C stops everything"

var orderLine = regexp.MustCompile(`Order (ORD-\S+) went from POST /orders to reserved, by event (\S+):`)

// The walkthrough: up, an order, a second up, dead children, Ctrl-C, up again
// with the same data, SIGTERM, reset.
func TestUp(t *testing.T) {
	t.Parallel()
	local(t)
	flags, orderURL, _ := instance(t)
	name := flags[2]
	up := start(t, append([]string{"up"}, flags...)...)
	up.says(t, lastLine)
	m := orderLine.FindStringSubmatch(up.output())
	if m == nil {
		t.Fatal("no reserved order in what it said")
	}
	orderID, eventID := m[1], m[2]
	for _, hint := range []string{"./baton check --name ", "./baton up --name ", "./baton reset --name "} {
		if !strings.Contains(up.output(), hint+name+"\n") && !strings.Contains(up.output(), hint+name+" ") {
			t.Errorf("it does not say %s%s", hint, name)
		}
	}
	for _, step := range []string{"order.committed", "relay.settled", "inventory.reserved"} {
		if !regexp.MustCompile(regexp.QuoteMeta(step) + ` +` + eventID).MatchString(up.output()) {
			t.Errorf("no step %s of event %s in the timeline", step, eventID)
		}
	}
	if n := strings.Count(up.output(), "\n  curl "); n != 3 {
		t.Errorf("%d curl lines to try, want 3", n)
	}

	if out, code := play(t, "check", "--name", name); code != 0 || !strings.Contains(out, "= reserved                1\n") || !strings.Contains(out, "\nbroker: checked\n") {
		t.Errorf("check: exit code %d, %s", code, out)
	}
	if out, code := play(t, "check", "--name", name, "--event", eventID); code != 0 || !strings.HasPrefix(out, "order "+orderID+"\n") || !strings.Contains(out, "inventory.reserved") {
		t.Errorf("check --event: exit code %d, %s", code, out)
	}
	if info, err := os.Stat(filepath.Join(clone(t), ".baton", name, "connections.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the addresses: %v, %v", info, err)
	}
	if out, code := play(t, append([]string{"up"}, flags...)...); code != 1 || !strings.Contains(out, "runs already") {
		t.Errorf("a second up: exit code %d, %q", code, out)
	}
	if out, code := play(t, "reset", "--name", name); code != 1 || !strings.Contains(out, "runs already") {
		t.Errorf("reset while up runs: exit code %d, %q", code, out)
	}

	// Every child dies once. Each is started again, and says so.
	for _, child := range childrenOf(t, up.cmd.Process.Pid) {
		for program, title := range map[string]string{"/order": "order", "/inventory": "inventory", "/postgres": "PostgreSQL", "/beam.smp": "RabbitMQ"} {
			if strings.HasSuffix(child.path, program) {
				if err := syscall.Kill(child.pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				up.says(t, title+" ended by itself")
			}
		}
	}
	testenv.Eventually(t, time.Minute, "the order is there again", func() error { return get(t, orderURL+"/orders/"+orderID) })

	up.signal(t, syscall.SIGINT)
	if code := up.end(t); code != 0 {
		t.Errorf("exit code after Ctrl-C: %d, want 0", code)
	}
	nothingLeft(t, name)

	again := start(t, append([]string{"up"}, flags...)...)
	again.says(t, lastLine)
	if err := get(t, orderURL+"/orders/"+orderID); err != nil {
		t.Errorf("the first order, after a restart of everything: %v", err)
	}
	again.signal(t, syscall.SIGTERM)
	if code := again.end(t); code != 0 {
		t.Errorf("exit code after SIGTERM: %d, want 0", code)
	}
	nothingLeft(t, name)
}

func TestUpInterruptedWhileItStarts(t *testing.T) {
	t.Parallel()
	local(t)
	flags, _, _ := instance(t)
	up := start(t, append([]string{"up"}, flags...)...)
	up.says(t, "PostgreSQL")
	up.signal(t, syscall.SIGTERM)
	if code := up.end(t); code != 0 {
		t.Errorf("exit code: %d, want 0", code)
	}
	nothingLeft(t, flags[2])
}

func TestUpAddressTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, flag := range []string{"--order-addr", "--inventory-addr"} {
		flags, _, _ := instance(t)
		out, code := play(t, append(append([]string{"up"}, flags...), flag, l.Addr().String())...)
		if code != 1 || !strings.Contains(out, l.Addr().String()+" is taken") || !strings.Contains(out, flag) {
			t.Errorf("exit code %d, %q; want one that names %s", code, out, flag)
		}
	}
}

func TestMigrateAndSetupNameWhatIsMissing(t *testing.T) {
	t.Parallel()
	for command, variable := range map[string]string{"migrate": "ORDER_MIGRATE_URL", "setup": "BATON_ADMIN_"} {
		if out, code := play(t, command); code != 1 || !strings.Contains(out, variable) {
			t.Errorf("%s: exit code %d, %q; want one that names %s", command, code, out, variable)
		}
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	for range 2 { // the second has nothing to do, and says so
		cmd := exec.Command(os.Args[0], "migrate", "--json")
		cmd.Env = append(os.Environ(), "BATON_TEST_PLAY=1", "ORDER_MIGRATE_URL="+url)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var result struct {
			Databases []stack.Migrated `json:"databases"`
		}
		if err := json.Unmarshal(out, &result); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if len(result.Databases) != 1 || result.Databases[0].Service != "order" || result.Databases[0].Version < 1 {
			t.Errorf("got %s", out)
		}
	}
}

// baton test passes on what go test says, and its exit code, and leaves nothing
// behind when it is interrupted.
func TestTest(t *testing.T) {
	t.Parallel()
	testenv.Shared(t)
	module := t.TempDir()
	files := map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"m_test.go": `package m
import ("os"; "testing")
func TestPass(t *testing.T) { t.Log("passed on") }
func TestFail(t *testing.T) { t.Fail() }
func TestSlow(t *testing.T) { println("slow in " + os.Getenv("BATON_TEST_SERVERS")); <-t.Context().Done() }
`,
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(module, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for test, want := range map[string]int{"TestPass": 0, "TestFail": 1} {
		p := startIn(t, module, "test", "./...", "--", "-v", "-run", test)
		if code := p.end(t); code != want || !strings.Contains(p.output(), "=== RUN   "+test) {
			t.Errorf("%s: exit code %d, want %d; %s", test, code, want, p.output())
		}
	}
	p := startIn(t, module, "test", "--", "-v", "-run", "TestSlow")
	p.says(t, "slow in "+os.Getenv(servers.TestServersVar))
	p.signal(t, syscall.SIGINT)
	if code := p.end(t); code == 0 {
		t.Error("an interrupted run claims to have passed")
	}
	for _, other := range children(t, func(c child) bool { return strings.HasSuffix(c.path, "/m.test") }) {
		t.Errorf("left running: %s", other.path)
	}
}

func get(t *testing.T, url string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return testenv.Want(resp.StatusCode, http.StatusOK)
}

// child is a process that runs.
type child struct {
	pid, parent int
	path        string
	environ     string
}

func childrenOf(t *testing.T, parent int) []child {
	t.Helper()
	return children(t, func(c child) bool { return c.parent == parent })
}

func nothingLeft(t *testing.T, name string) {
	t.Helper()
	for _, c := range children(t, func(c child) bool {
		return strings.Contains(c.environ, "BATON_HOME=") && strings.Contains(c.environ, "/"+name+"\x00")
	}) {
		t.Errorf("left running: %d %s", c.pid, c.path)
	}
}

func children(t *testing.T, match func(child) bool) []child {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []child
	for _, dir := range dirs {
		// What fails has ended, or is a process of somebody else.
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		c := child{}
		c.pid, _ = strconv.Atoi(filepath.Base(dir))
		c.parent, _ = strconv.Atoi(fields[1])
		c.path, _ = os.Readlink(filepath.Join(dir, "exe"))
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		c.environ = string(environ) + "\x00"
		if match(c) {
			found = append(found, c)
		}
	}
	return found
}
