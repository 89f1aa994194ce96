package servers

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Processes are read from /proc. Where there is none nothing is found, and
// leftovers of a killed supervisor are the user's to end.

// endMarked ends every process whose environment has the entry mark. The
// kernel has usually asked them to stop when their parent died, so they get a
// moment to do so.
func endMarked(ctx context.Context, mark string) error {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if len(marked(mark)) == 0 {
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	for _, pid := range marked(mark) {
		if err := killTree(ctx, pid); err != nil {
			return err
		}
	}
	return nil
}

func marked(mark string) []int {
	return pids(func(dir string) bool {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		return err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(e []byte) bool { return string(e) == mark })
	})
}

// killTree ends pid and its descendants by SIGKILL and waits until they are
// gone. PostgreSQL's and Erlang's children lead sessions of their own, so a
// signal to the process group would miss them, and they outlive their parent
// for a moment in which a new server cannot start.
func killTree(ctx context.Context, pid int) error {
	tree := append([]int{pid}, descendants(pid)...)
	for _, p := range tree {
		if err := syscall.Kill(p, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("kill process %d: %w", p, err)
		}
	}
	for slices.ContainsFunc(tree, alive) {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("process %d does not end: %w", pid, err)
		}
	}
	return nil
}

func descendants(pid int) []int {
	var found []int
	for _, child := range pids(func(dir string) bool { _, ppid := stat(dir); return ppid == pid }) {
		found = append(found, child)
		found = append(found, descendants(child)...)
	}
	return found
}

// alive is false for a zombie: nothing of it is left but its exit code.
func alive(pid int) bool {
	state, _ := stat(filepath.Join("/proc", strconv.Itoa(pid)))
	return state != 0 && state != 'Z'
}

func pids(match func(dir string) bool) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the only error is a bad pattern
	var found []int
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && alive(pid) && match(dir) {
			found = append(found, pid)
		}
	}
	return found
}

// stat reads state and parent of a process, 0 and 0 if there is none.
func stat(dir string) (state byte, ppid int) {
	data, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, 0
	}
	// "pid (name) state ppid …", and the name may hold blanks and brackets.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 2 {
		return 0, 0
	}
	ppid, err = strconv.Atoi(fields[1])
	if err != nil {
		return 0, 0
	}
	return fields[0][0], ppid
}

// pause waits for d, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
