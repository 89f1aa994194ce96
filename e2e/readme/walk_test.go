package readme

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/internal/servers"
	"example.com/baton/internal/testenv"
)

// elsewhere are commands that take too long to be run here, or need a Docker
// engine, with the step of .ci/run that runs them.
var elsewhere = map[string]string{
	"./baton test": "./baton test --servers local",
	// A short run of it, in e2e/chaos.
	"./baton chaos --orders 5000 --minutes 3 --seed 42": "./baton test --servers local",
	"docker compose up --wait":                          "./e2e/compose",
	"docker compose down":                               "./e2e/compose",
}

// The commands of both pages, word for word and in the same order, so that it is
// enough to run those of one.
func TestBothLanguagesShowTheSame(t *testing.T) {
	t.Parallel()
	english, chinese := steps(read(t, "README.md")), steps(read(t, "README.zh.md"))
	for _, list := range [][]step{english, chinese} {
		for i := range list {
			list[i].line = 0
		}
	}
	if diff := cmp.Diff(english, chinese, cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("commands and output of README.md and README.zh.md (-English +Chinese):\n%s", diff)
	}
}

func TestElsewhere(t *testing.T) {
	t.Parallel()
	shown := steps(read(t, "README.md"))
	run := read(t, ".ci/run")
	for command, place := range elsewhere {
		if !slices.ContainsFunc(shown, func(s step) bool { return s.command == command }) {
			t.Errorf("%s is no command of README.md", command)
		}
		if !strings.Contains(run, place) {
			t.Errorf("%s is to be run by %s, which is no step of .ci/run", command, place)
		}
	}
}

// patience is how long the page may take to come true on a busy machine.
const patience = 60 * time.Second

// Every command of README.md, one after the other, in a clean clone.
func TestEveryCommand(t *testing.T) {
	t.Parallel()
	switch os.Getenv(servers.TestServersVar) {
	case string(servers.Local):
	case "":
		testenv.Shared(t) // skips or fails
	default:
		t.Skip("the page says ./baton up --local, whose programs a run with servers in containers need not have; e2e/compose walks in containers")
	}
	r := newReader(t)
	compared := false
	for _, s := range steps(read(t, "README.md")) {
		if elsewhere[s.command] != "" {
			continue
		}
		r.follow(s)
		if r.up != nil && !compared {
			r.compareTables()
			compared = true
		}
	}
	if r.up != nil {
		t.Error("the page leaves Baton running")
	}
}

// reader is somebody who types what the page says.
type reader struct {
	t                        *testing.T
	clone                    string
	home                     string // where the clone's data are
	orderAddr, inventoryAddr string
	ids                      memory
	up                       *terminal // the one in which "./baton up" runs, or nil
}

func newReader(t *testing.T) *reader {
	r := &reader{t: t, clone: copyOfTree(t), orderAddr: freeAddr(t), inventoryAddr: freeAddr(t), ids: memory{}}
	t.Cleanup(r.cleanUp)
	return r
}

// cleanUp leaves nothing of the clone, wherever the page was left off.
func (r *reader) cleanUp() {
	r.endUp()
	if r.home == "" {
		return
	}
	if _, err := os.Stat(r.home); !errors.Is(err, fs.ErrNotExist) {
		if out, err := r.shell(context.Background(), "./baton reset --local"); err != nil {
			r.t.Errorf("clean up: %v\n%s", err, out)
		}
	}
	// For root the data are outside of the clone, in a folder named after it,
	// which stays for other names of data.
	if clone := filepath.Dir(r.home); !strings.HasPrefix(clone, r.clone) {
		if err := os.Remove(clone); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.t.Errorf("clean up: %v", err)
		}
	}
}

// copyOfTree is what a clone has: everything but what is not committed.
func copyOfTree(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "baton")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if name == ".git" || name == ".baton" {
			return fs.SkipDir
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(dir, name), 0o755)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), data, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// The page's addresses are the defaults, which somebody else may use.
const orderDefault, inventoryDefault = "127.0.0.1:8080", "127.0.0.1:8081"

// typed is a command of the page as it has to be typed here: by this run's ids
// and addresses, and in local mode wherever a Docker engine would be taken.
func (r *reader) typed(command string) string {
	return r.ids.here(strings.NewReplacer(
		orderDefault, r.orderAddr, inventoryDefault, r.inventoryAddr,
		"./baton up", "./baton up --local --order-addr "+r.orderAddr+" --inventory-addr "+r.inventoryAddr,
		"./baton reset", "./baton reset --local",
	).Replace(command))
}

// shown is output as the page would show it.
func (r *reader) shown(output string) string {
	return strings.NewReplacer(r.orderAddr, orderDefault, r.inventoryAddr, inventoryDefault).Replace(output)
}

// follow does one step of the page and compares what comes of it.
func (r *reader) follow(s step) {
	r.t.Helper()
	start := time.Now()
	var err error
	switch {
	case s.command == "":
		err = r.until(func() error { return r.ids.match(s.want, r.shown(r.up.text()), false) })
	case strings.HasSuffix(s.command, "./baton up"):
		r.endUp() // "stop it with Ctrl-C"
		r.startUp(s)
		return
	case s.command == "./baton reset":
		r.endUp()
		fallthrough
	default:
		err = r.run(s)
	}
	if err != nil {
		r.t.Fatalf("README.md:%d: %s\n%v", s.line, s.command, err)
	}
	r.t.Logf("%4.1f s  README.md:%d: %s", time.Since(start).Seconds(), s.line, s.command)
}

// run types a command. One that only looks is typed again until the page's
// output is there: events take their time.
func (r *reader) run(s step) error {
	once := func() error {
		ctx, cancel := context.WithTimeout(r.t.Context(), patience)
		defer cancel()
		out, err := r.shell(ctx, r.typed(s.command))
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return r.ids.match(s.want, r.shown(out), true)
	}
	looks := strings.HasPrefix(s.command, "curl ") && !strings.Contains(s.command, " -d ") && !strings.Contains(s.command, " -X ")
	if !looks {
		return once()
	}
	return r.until(once)
}

func (r *reader) until(there func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := there()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-r.t.Context().Done():
			return err
		}
	}
}

func (r *reader) shell(ctx context.Context, command string) (string, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir = r.clone
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// terminal is a command in the foreground.
type terminal struct {
	cmd   *exec.Cmd
	ended chan error

	mu  sync.Mutex
	out bytes.Buffer
}

func (t *terminal) start() error {
	t.cmd.Stdout, t.cmd.Stderr, t.cmd.SysProcAttr = t, t, attr()
	started := make(chan error)
	go func() { // ends with the command
		// The thread must not end before it: see attr.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := t.cmd.Start()
		started <- err
		if err == nil {
			t.ended <- t.cmd.Wait()
		}
	}()
	return <-started
}

func (t *terminal) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.Write(b)
}

func (t *terminal) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.String()
}

func (r *reader) startUp(s step) {
	r.t.Helper()
	start := time.Now()
	words := strings.Fields(r.typed(s.command))
	first := slices.IndexFunc(words, func(w string) bool { return !strings.Contains(w, "=") })
	up := &terminal{cmd: exec.Command(words[first], words[first+1:]...), ended: make(chan error, 1)}
	up.cmd.Dir, up.cmd.Env = r.clone, append(os.Environ(), words[:first]...)
	if err := up.start(); err != nil {
		r.t.Fatal(err)
	}
	r.up = up
	err := r.until(func() error {
		select {
		case err := <-up.ended:
			r.up = nil
			r.t.Fatalf("README.md:%d: %s ended: %v\n%s", s.line, s.command, err, up.text())
		default:
		}
		return r.ids.match(s.want, r.shown(up.text()), true)
	})
	if err != nil {
		r.t.Fatalf("README.md:%d: %s\n%v", s.line, s.command, err)
	}
	if r.home, err = filepath.EvalSymlinks(filepath.Join(r.clone, ".baton", "data")); err != nil {
		r.t.Fatal(err)
	}
	r.t.Logf("%4.1f s  README.md:%d: %s", time.Since(start).Seconds(), s.line, s.command)
}

// endUp stops what runs, as Ctrl-C would, and looks for what it left.
func (r *reader) endUp() {
	if r.up == nil {
		return
	}
	up := r.up
	r.up = nil
	start := time.Now()
	if err := up.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.t.Errorf("stop up: %v", err)
	}
	select {
	case err := <-up.ended:
		if err != nil {
			r.t.Errorf("up after SIGTERM: %v\n%s", err, up.text())
		}
	case <-time.After(patience):
		_ = up.cmd.Process.Kill() // its children notice
		<-up.ended
		r.t.Errorf("up did not stop within %s\n%s", patience, up.text())
	}
	if left := marked(r.home); len(left) > 0 {
		r.t.Errorf("up has left processes behind: %q", left)
	}
	r.t.Logf("%4.1f s  Ctrl-C", time.Since(start).Seconds())
}

// marked are the processes that belong to a home: all of them carry its path in
// their environment.
func marked(home string) (commands []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ") // the only error is a bad pattern
	for _, path := range all {
		environ, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), "BATON_HOME="+home) {
			continue // ended meanwhile, or somebody else's
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline")) // empty if it has ended meanwhile
		commands = append(commands, strings.ReplaceAll(string(command), "\x00", " "))
	}
	return commands
}
