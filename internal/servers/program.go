package servers

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
)

// NewProgram prepares a program of our own, to run beside the servers as the
// user that we are. It is called name, as are its log and its messages; env is
// added to our environment, and check says whether it is ready. Stop sends
// SIGTERM.
func NewProgram(cfg Config, name, path string, env []string, check func(context.Context) error) *Server {
	run := &process{
		account:    account{self: true},
		dir:        filepath.Dir(path),
		env:        append(append(os.Environ(), env...), cfg.Home.mark()),
		path:       path,
		logFile:    filepath.Join(cfg.Home.path, name+".log"),
		parentDied: syscall.SIGTERM,
	}
	s := newServer(name, "", cfg, run, syscall.SIGTERM, func(ctx context.Context) (string, error) { return "", check(ctx) })
	return &s
}
