package system

import "syscall"

// attr keeps a terminal's Ctrl-C for us, and makes the kernel kill the child
// when the thread that started it ends: a test binary that is killed leaves
// nothing behind.
func attr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
