package servers

import "syscall"

// ownGroup keeps a terminal's Ctrl-C from reaching the child: it is for the
// supervisor, which then stops its children in order.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// attr is ownGroup, as another user if need be, with a signal that the kernel
// sends when the thread that started the child ends. See process.launch for
// how that thread is kept.
func attr(a account, parentDied syscall.Signal) *syscall.SysProcAttr {
	sys := ownGroup()
	sys.Pdeathsig = parentDied
	if !a.self {
		sys.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return sys
}
