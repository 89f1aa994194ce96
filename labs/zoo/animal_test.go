package zoo

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// mistakeVariable makes the test binary a process that makes a mistake.
const mistakeVariable = "ZOO_MISTAKE"

func TestMain(m *testing.M) {
	if name := os.Getenv(mistakeVariable); name != "" {
		if err := Main(context.Background(), []string{name}, os.Getenv, os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, "zoo:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(system.Main(m))
}

const patience = 60 * time.Second

// actor is a process that does one leg: a mistake, or a service of the product.
type actor interface {
	waitDead() // it dies at the point that it was told to die at
	waitAt()   // it waits at a point
	goOn()
	wait(line string) // it logs this
	end()             // finishes what it has in hand
}

// animal is a mistake that is being made.
type animal struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	log   string // a file, so that what it says is there even if it is killed
	ended chan struct{}

	hand  sync.Mutex
	stdin io.WriteCloser // its end tells the animal to end
}

func startAnimal(t *testing.T, name, fault string, env ...string) *animal {
	t.Helper()
	a := &animal{t: t, name: name, log: filepath.Join(t.TempDir(), name+".log"), ended: make(chan struct{})}
	log, err := os.Create(a.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a.cmd = exec.Command(self)
	a.cmd.Env = append([]string{mistakeVariable + "=" + name, "ZOO_FAULT=" + fault, "GORACE=atexit_sleep_ms=0"}, env...)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if a.stdin, err = a.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		defer close(a.ended)
		_ = a.cmd.Wait() // the state has it
	}()
	t.Cleanup(func() {
		a.end()
		text := a.said()
		if strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic: ") {
			t.Errorf("%s reports a data race or a panic", name)
		}
		if t.Failed() {
			const most = 4 << 10
			t.Logf("the end of what %s said:\n%s", name, text[max(0, len(text)-most):])
		}
	})
	a.wait("zoo: started")
	return a
}

func (a *animal) said() string {
	text, err := os.ReadFile(a.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (a *animal) wait(line string) {
	a.t.Helper()
	testenv.Eventually(a.t, patience, a.name+" says "+line, func() error {
		if strings.Contains(a.said(), line) {
			return nil
		}
		select {
		case <-a.ended:
			a.t.Fatalf("%s has ended: %v", a.name, a.cmd.ProcessState)
		default:
		}
		return fmt.Errorf("it has not")
	})
}

func (a *animal) waitAt() { a.t.Helper(); a.wait("zoo: wait at") }

func (a *animal) goOn() {
	a.t.Helper()
	a.hand.Lock()
	defer a.hand.Unlock()
	if _, err := io.WriteString(a.stdin, "\n"); err != nil {
		a.t.Error(err)
	}
}

func (a *animal) waitDead() {
	a.t.Helper()
	select {
	case <-a.ended:
	case <-time.After(patience):
		a.t.Fatalf("%s did not die", a.name)
	}
	if status, ok := a.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		a.t.Fatalf("%s ended by %v, want SIGKILL", a.name, a.cmd.ProcessState)
	}
}

func (a *animal) end() {
	a.hand.Lock()
	_ = a.stdin.Close() // it may be closed, or the animal dead
	a.hand.Unlock()
	select {
	case <-a.ended:
	case <-time.After(patience):
		a.t.Errorf("%s does not end", a.name)
		_ = a.cmd.Process.Kill()
		<-a.ended
	}
}

// service is a process of the product in the place of a mistake.
type service struct {
	*system.Process
	fault faults.Fault
}

// productFaults are the points of mistakes as steps of the product.
var productFaults = map[string]faults.Fault{
	"die at claimed":      {Step: outbox.StepClaimed, Action: faults.Crash},
	"die at recorded":     {Step: rabbit.StepReceived, Action: faults.Crash},
	"die at reserved":     {Step: rabbit.StepReceived, Action: faults.Crash},
	"wait at looked":      {Step: rabbit.StepReceived, Action: faults.Stop},
	"fail at reserved":    {Step: rabbit.StepReceived, Action: faults.Error, Times: 1000},
	"stumble at reserved": {Step: rabbit.StepReceived, Action: faults.Error, Times: 1},
}

func startService(p *system.Process, fault string) *service {
	f, known := productFaults[fault]
	if known {
		p.RestartArmed(f)
	} else {
		p.Restart()
	}
	return &service{p, f}
}

func (s *service) waitDead()   { s.WaitCrash(s.fault.Step) }
func (s *service) wait(string) {}
func (s *service) end()        { s.Stop() }

// The product has no such point between selecting and claiming rows.
func (s *service) waitAt() {
	if s.fault.Step != "" {
		s.WaitStopped(s.fault.Step)
	}
}

func (s *service) goOn() { s.Thaw() }
