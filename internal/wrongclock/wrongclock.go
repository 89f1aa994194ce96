// Package wrongclock builds programs whose wall clock can be set wrong, as that
// of a machine is when its time service fails: time.Now is off in the whole
// process, the libraries included, from its start or from one moment to the
// next. The monotonic clock stays right, as it does on such a machine, so
// durations, timers and deadlines do not notice.
//
// It replaces one line of the standard library for the one build, with go build
// -overlay, and adds a few. A program that is built without is the same as ever.
// It works with -race. The first such build makes the whole standard library
// anew; the build cache keeps it, wherever the overlay is written.
package wrongclock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Tag is the build tag that [Flags] sets. With it time.ShiftWallClock(d) makes
// time.Now of the process wrong by d until it is called again; without it there
// is no such function.
const Tag = "wrongclock"

// Offset is the environment variable that such a program takes the first error
// of its clock from, as time.ParseDuration reads it: "-48h". Without it the
// clock starts right.
const Offset = "BATON_WALL_CLOCK_OFFSET"

const (
	right = "\tsec, nsec, mono := runtimeNow()\n"
	wrong = "\tsec, nsec, mono := wrongNow()\n"
)

// shift is added to package time.
const shift = `package time

import (
	"sync/atomic"
	"syscall"
)

var wallShift atomic.Int64 // nanoseconds

func init() {
	if s, ok := syscall.Getenv("` + Offset + `"); ok {
		d, err := ParseDuration(s)
		if err != nil {
			panic("` + Offset + `: " + err.Error())
		}
		ShiftWallClock(d)
	}
}

// ShiftWallClock makes the wall clock of this process wrong by d.
func ShiftWallClock(d Duration) { wallShift.Store(int64(d)) }

func wrongNow() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = runtimeNow()
	const second = int64(Second)
	n := int64(nsec) + wallShift.Load()
	sec, n = sec+n/second, n%second
	if n < 0 {
		sec, n = sec-1, n+second
	}
	return sec, int32(n), mono
}
`

// Flags returns the flags for go build, go run or go test that make a program
// with a clock that can be set wrong. The files they name are written to dir and
// have to be there during the build.
//
// It is an error if the standard library of the go command does not look as
// expected: then nothing would be wrong, and a test would show nothing.
func Flags(dir string) ([]string, error) {
	cmd := exec.Command("go", "env", "GOROOT", "GOVERSION")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	root, goVersion, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	path := filepath.Join(root, "src", "time", "time.go")
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the source of package time: %w", err)
	}
	if n := bytes.Count(src, []byte(right)); n != 1 {
		return nil, fmt.Errorf("%s of %s reads the clock in %d places that look like %q, want 1", path, goVersion, n, right)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	replaced, added := filepath.Join(dir, "time.go"), filepath.Join(dir, "shift.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		path: replaced,
		filepath.Join(root, "src", "time", "wrongclock.go"): added,
	}})
	if err != nil {
		return nil, err
	}
	list := filepath.Join(dir, "overlay.json")
	for name, content := range map[string][]byte{
		replaced: bytes.Replace(src, []byte(right), []byte(wrong), 1),
		added:    []byte(shift),
		list:     overlay,
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			return nil, fmt.Errorf("write the overlay: %w", err)
		}
	}
	return []string{"-tags=" + Tag, "-overlay=" + list}, nil
}
