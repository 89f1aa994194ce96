package readme

import "syscall"

// attr has the kernel end a child in order when the thread that started it ends:
// a test that is killed leaves nothing behind.
func attr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
