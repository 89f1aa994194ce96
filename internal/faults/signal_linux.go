package faults

import (
	"os"
	"runtime"
	"syscall"
)

// signalSelf kills or stops this process, such that the caller's next statement
// runs never, or only after SIGCONT.
func signalSelf(a Action) {
	if a == Crash {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal is delivered, which takes no longer than the way out of the kernel
	}
	// A stop sent to the process is delivered to any thread of it, and this one
	// would run on for a moment, past the step. Sent to this very thread it takes
	// effect before the system call returns.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}
