//go:build !linux

package readme

import "syscall"

// attr is empty: nothing here can tie a child's life to ours.
func attr() *syscall.SysProcAttr { return nil }
