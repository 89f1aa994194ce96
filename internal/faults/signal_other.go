//go:build unix && !linux

package faults

import (
	"os"
	"syscall"
)

// signalSelf kills or stops this process. Unlike on Linux the caller may run on
// for a moment before a stop takes effect.
func signalSelf(a Action) {
	if a == Crash {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
}
