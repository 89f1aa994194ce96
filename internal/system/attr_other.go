//go:build !linux

package system

import "syscall"

// attr keeps a terminal's Ctrl-C for us. Nothing here can tie the child's life
// to ours.
func attr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
