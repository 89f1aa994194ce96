package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/testenv"
)

const (
	// patience is for what takes a second or two on an idle machine.
	patience = 60 * time.Second
	// stopPatience is how long a service may take to end in order.
	stopPatience = 20 * time.Second
)

// Process is an order or inventory process, over all its lives.
type Process struct {
	Name string // "order-1"

	s       *System
	program string
	env     []string
	logFile string

	mu   sync.Mutex
	life *life // the present one, or the last; nil before the first
}

// life is one run of the program.
type life struct {
	process *os.Process
	logFrom int64         // where in the log it begins
	url     string        // once it listens; guarded by mu of the Process
	wanted  bool          // its end is the test's doing; guarded by mu of the Process
	ended   chan struct{} // closed once it has ended,
	state   *os.ProcessState
}

func newProcess(s *System, program, name string, env []string) *Process {
	p := &Process{
		Name: name, s: s, program: program,
		env:     append(append([]string{}, s.env[program]...), env...),
		logFile: filepath.Join(s.logs, name+".log"),
	}
	// Any free port, a new one in each life: nobody else can take it meanwhile.
	p.env = append(p.env, strings.ToUpper(program)+"_HTTP=127.0.0.1:0")
	s.t.Cleanup(p.cleanUp)
	return p
}

// Launch starts the program and returns when it listens. It need not be ready
// then, or ever.
func (p *Process) Launch() {
	p.s.t.Helper()
	if p.Running() {
		p.s.t.Fatalf("%s runs already", p.Name)
	}
	programs := &ordinary
	switch {
	case p.s.opts.WrongClocks:
		programs = &wrongClocks
	case p.s.opts.Plain:
		programs = &plain
	}
	path, err := programs.program(p.program)
	if err != nil {
		p.s.t.Fatal(err)
	}
	log, err := os.OpenFile(p.logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		p.s.t.Fatal(err)
	}
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		p.s.t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Env = p.env
	// A file and no pipe: what the process writes is there even if it is killed
	// in the next moment.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attr()

	l := &life{logFrom: from, ended: make(chan struct{})}
	started := make(chan error)
	go func() { // ends with the program
		defer log.Close()
		// The child dies with this thread: see attr.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		l.process = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait() // an exit code or a signal: the state has it
			l.state = cmd.ProcessState
			close(l.ended)
		}
	}()
	if err := <-started; err != nil {
		p.s.t.Fatalf("start %s: %v", p.Name, err)
	}
	p.mu.Lock()
	p.life = l
	p.mu.Unlock()
	testenv.Eventually(p.s.t, patience, p.Name+" listens", func() error {
		select {
		case <-l.ended:
			p.s.t.Fatalf("%s ended at once: %v\n%s", p.Name, l.state, p.Log())
		default:
		}
		return p.findURL(l)
	})
}

// findURL looks for the line in the log that says where the service listens.
func (p *Process) findURL(l *life) error {
	for line := range strings.Lines(p.Log()) {
		var started struct {
			Msg  string
			HTTP string
		}
		if json.Unmarshal([]byte(line), &started) == nil && started.Msg == p.program+" service started" {
			p.mu.Lock()
			defer p.mu.Unlock()
			l.url = "http://" + started.HTTP
			return nil
		}
	}
	return errors.New("the log does not say so yet")
}

// URL is where the process listens, or listened last. It changes with a restart.
func (p *Process) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life == nil {
		return "http://127.0.0.1:1" // nobody
	}
	return p.life.url
}

// PID is that of the present life.
func (p *Process) PID() int { return p.current().process.Pid }

func (p *Process) current() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life
}

// Running reports whether the process lives; a stopped one does.
func (p *Process) Running() bool {
	l := p.current()
	if l == nil {
		return false
	}
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

func (p *Process) waitReady() {
	p.s.t.Helper()
	p.waitFor("ready", func(code int, _ string) bool { return code == http.StatusOK })
}

// waitHealthy waits until nothing is amiss: ready, and not degraded.
func (p *Process) waitHealthy() {
	p.s.t.Helper()
	p.waitFor("healthy", func(code int, status string) bool {
		// Bindings of the other service are audited before they are there.
		return code == http.StatusOK && (status == "ok" || p.s.opts.Audit)
	})
}

func (p *Process) waitFor(what string, enough func(code int, status string) bool) {
	p.s.t.Helper()
	testenv.Eventually(p.s.t, patience, p.Name+" is "+what, func() error {
		if !p.Running() {
			p.s.t.Fatalf("%s has ended: %v", p.Name, p.current().state)
		}
		code, body, err := p.Get("/readyz")
		var answer struct{ Status string }
		if err == nil {
			err = json.Unmarshal(body, &answer)
		}
		if err == nil && !enough(code, answer.Status) {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
}

// Get is a GET request to the process.
func (p *Process) Get(path string) (status int, body []byte, err error) {
	res, err := p.s.http.Get(p.URL() + path)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

// Metric reads a number from /metrics, by its name with labels as it is shown
// there: baton_relay_outcomes_total{outcome="published"}. Counters start anew
// with each life.
func (p *Process) Metric(name string) float64 {
	p.s.t.Helper()
	v, err := p.ReadMetric(name)
	if err != nil {
		p.s.t.Fatal(err)
	}
	return v
}

// ReadMetric is Metric for a process that may be unable to say: what it cannot
// read at the moment it does not show.
func (p *Process) ReadMetric(name string) (float64, error) {
	status, body, err := p.Get("/metrics")
	switch {
	case err != nil:
		return 0, fmt.Errorf("metrics of %s: %w", p.Name, err)
	case status != http.StatusOK:
		return 0, fmt.Errorf("metrics of %s: status %d", p.Name, status)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("metrics of %s: no %s", p.Name, name)
}

// Absorbed is how many copies of messages this life has received and, thanks to
// its inbox, not handled again.
func (p *Process) Absorbed() int {
	p.s.t.Helper()
	return int(p.Metric("baton_inbox_duplicates_total"))
}

// Arm arms a fault.
func (p *Process) Arm(f faults.Fault) {
	p.s.t.Helper()
	body, err := json.Marshal(f)
	if err != nil {
		p.s.t.Fatal(err)
	}
	res, err := p.s.http.Post(p.URL()+"/faults", "application/json", bytes.NewReader(body))
	if err != nil {
		p.s.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		answer, _ := io.ReadAll(res.Body)
		p.s.t.Fatalf("arm %s: %s %s", body, res.Status, answer)
	}
}

// Disarm disarms every fault.
func (p *Process) Disarm() {
	p.s.t.Helper()
	req, err := http.NewRequestWithContext(p.s.t.Context(), http.MethodDelete, p.URL()+"/faults", nil)
	if err != nil {
		p.s.t.Fatal(err)
	}
	res, err := p.s.http.Do(req)
	if err != nil {
		p.s.t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		p.s.t.Fatalf("disarm: %s", res.Status)
	}
}

// WaitCrash waits until a crash that was armed for step has happened, and
// returns the ids that were at this step. The process must have died by SIGKILL,
// by its own hand, and with work in hand.
func (p *Process) WaitCrash(step string) (ids []string) {
	p.s.t.Helper()
	l := p.current()
	p.expectEnd(l)
	select {
	case <-l.ended:
	case <-time.After(patience):
		p.s.t.Fatalf("%s did not crash at %s within %s", p.Name, step, patience)
	}
	if status, ok := l.state.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		p.s.t.Fatalf("%s ended by %v, want SIGKILL", p.Name, l.state)
	}
	return p.saidFault(faults.Crash, step)
}

// WaitStopped is WaitCrash for a stop: the process is alive and does nothing.
func (p *Process) WaitStopped(step string) (ids []string) {
	p.s.t.Helper()
	l := p.current()
	testenv.Eventually(p.s.t, patience, p.Name+" stops at "+step, func() error {
		if !p.Running() {
			p.s.t.Fatalf("%s has ended: %v", p.Name, l.state)
		}
		return stopped(l.process.Pid)
	})
	return p.saidFault(faults.Stop, step)
}

// stopped returns nil if a process is stopped by a signal, all its threads.
func stopped(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended meanwhile
		}
		// "12345 (order) T …": the name may hold anything, so from the end of it.
		_, state, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')'):]), " ")
		if !strings.HasPrefix(state, "T") {
			return fmt.Errorf("a thread is in state %.1s", state)
		}
	}
	return nil
}

// saidFault reads the ids from the line that the last fault has left.
func (p *Process) saidFault(action faults.Action, step string) (ids []string) {
	p.s.t.Helper()
	prefix := fmt.Sprintf("fault: %s at %s ids=[", action, step)
	for line := range strings.Lines(p.Log()) {
		if list, ok := strings.CutPrefix(line, prefix); ok {
			ids = strings.Fields(strings.TrimRight(list, "]\n"))
		}
	}
	if len(ids) == 0 {
		p.s.t.Fatalf("%s did not say %q and what it had in hand", p.Name, prefix)
	}
	return ids
}

// Restart starts the process again after its end, and returns when it is ready.
func (p *Process) Restart() {
	p.s.t.Helper()
	p.Launch()
	p.waitReady()
}

// RestartArmed starts the process, again or for the first time, with a fault
// that is armed before it does anything, and does not wait until it is ready: it
// may not live that long.
func (p *Process) RestartArmed(f faults.Fault) {
	p.s.t.Helper()
	// A service begins its work once it has seen the version of its schema. It
	// serves HTTP before, and that is when the fault is armed.
	ctx := p.s.t.Context()
	conn, err := pgx.Connect(ctx, p.s.databases[p.program].Admin)
	if err != nil {
		p.s.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // gives the lock back
	if _, err := conn.Exec(ctx, `begin; lock table goose_db_version in access exclusive mode`); err != nil {
		p.s.t.Fatal(err)
	}
	p.Launch()
	p.Arm(f)
}

// Kill ends the process by SIGKILL, wherever it is in its work.
func (p *Process) Kill() {
	p.s.t.Helper()
	p.end(syscall.SIGKILL)
}

// Stop ends the process in order, by SIGTERM, within 20 seconds.
func (p *Process) Stop() {
	p.s.t.Helper()
	if l := p.end(syscall.SIGTERM); l != nil && !l.state.Success() {
		p.s.t.Errorf("%s ended by %v after SIGTERM, want exit code 0", p.Name, l.state)
	}
}

func (p *Process) end(sig syscall.Signal) *life {
	p.s.t.Helper()
	l := p.current()
	if l == nil || !p.Running() {
		return nil
	}
	p.expectEnd(l)
	p.signal(l, sig)
	select {
	case <-l.ended:
	case <-time.After(stopPatience):
		p.s.t.Errorf("%s did not end within %s after %s", p.Name, stopPatience, sig)
		p.signal(l, syscall.SIGKILL)
		<-l.ended
	}
	return l
}

// Freeze stops the process by SIGSTOP: it keeps its connections and does nothing.
func (p *Process) Freeze() { p.signal(p.current(), syscall.SIGSTOP) }

// Thaw lets a stopped process go on, by SIGCONT.
func (p *Process) Thaw() { p.signal(p.current(), syscall.SIGCONT) }

func (p *Process) signal(l *life, sig syscall.Signal) {
	p.s.t.Helper()
	if err := l.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.s.t.Errorf("%s: %s: %v", p.Name, sig, err)
	}
}

func (p *Process) expectEnd(l *life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.wanted = true
}

// Log is what the present life, or the last one, has written.
func (p *Process) Log() string {
	log, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	if l := p.current(); l != nil {
		log = log[l.logFrom:]
	}
	return string(log)
}

// cleanUp ends the process at the end of the test and looks back on it.
func (p *Process) cleanUp() {
	l := p.current()
	if l == nil {
		return
	}
	if p.Running() {
		p.Thaw()
		p.Stop()
	}
	p.mu.Lock()
	wanted := l.wanted
	p.mu.Unlock()
	if !wanted {
		p.s.t.Errorf("%s ended by itself: %v", p.Name, l.state)
	}
	log, err := os.ReadFile(p.logFile)
	if err != nil {
		p.s.t.Error(err)
	}
	if bytes.Contains(log, []byte("WARNING: DATA RACE")) || bytes.Contains(log, []byte("\npanic: ")) {
		p.s.t.Errorf("%s reports a data race or a panic:\n%s", p.Name, log)
	} else if p.s.t.Failed() {
		const most = 16 << 10
		p.s.t.Logf("the end of the log of %s:\n%s", p.Name, log[max(0, len(log)-most):])
	}
}
