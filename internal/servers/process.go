package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// process runs a program of this machine.
type process struct {
	account    account
	dir        string   // working directory; it belongs to account
	env        []string // the whole environment
	path       string
	args       []string
	logFile    string
	parentDied syscall.Signal // what it gets if we die

	mu      sync.Mutex
	running *os.Process // nil when it does not run
}

func (p *process) launch(context.Context) (<-chan error, error) {
	log, err := os.OpenFile(p.logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Env = p.dir, p.env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attr(p.account, p.parentDied)

	started, ended := make(chan error, 1), make(chan error, 1)
	go func() { // ends with the program
		defer log.Close()
		// The kernel sends parentDied when this thread ends, so this goroutine
		// keeps the thread for as long as the program runs.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.setRunning(cmd.Process)
		started <- nil
		err := cmd.Wait()
		p.setRunning(nil)
		ended <- err
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return ended, nil
}

func (p *process) setRunning(proc *os.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = proc
}

func (p *process) signal(ctx context.Context, sig syscall.Signal) error {
	p.mu.Lock()
	proc := p.running
	p.mu.Unlock()
	if proc == nil {
		return nil
	}
	if sig == syscall.SIGKILL {
		return killTree(ctx, proc.Pid)
	}
	if err := proc.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (p *process) prepare(context.Context) error { return nil }
func (p *process) started() error                { return nil }
func (p *process) release(context.Context) error { return nil }
func (p *process) log(context.Context) string    { return tail(p.logFile) }

// output runs a program that belongs to the server, as the server's user, and
// returns what it printed. It dies with ctx.
func (p *process) output(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = p.dir, p.env
	cmd.SysProcAttr = attr(p.account, 0)
	return combined(cmd)
}

// combined runs cmd; a failure carries what it printed.
func combined(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s: %w: %s", cmd.Args[0], err, text)
	}
	return text, nil
}

// tail is the last 2 KiB of a file, in whole lines.
func tail(path string) string {
	const most = 2048
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if _, err := f.Seek(-most, io.SeekEnd); err != nil { // shorter than that
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	text := string(data)
	if len(data) == most {
		_, text, _ = strings.Cut(text, "\n")
	}
	return strings.TrimSpace(text)
}
