//go:build !linux

package servers

import "syscall"

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// attr cannot tie the child's life to ours here; the next start ends leftovers.
func attr(a account, _ syscall.Signal) *syscall.SysProcAttr {
	sys := ownGroup()
	if !a.self {
		sys.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return sys
}
