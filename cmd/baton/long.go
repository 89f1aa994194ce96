package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"example.com/baton/internal/servers"
)

// longRun gives a long run a Home of its own and the kind of servers to use, with
// their programs installed. The logs of a run that is not ok, and was not
// interrupted, are kept in a folder called after it.
func longRun(ctx context.Context, say func(string), name, kind string, run func(*servers.Home, servers.Kind) (ok bool, err error)) (err error) {
	clone, err := servers.ClonePath(".")
	if err != nil {
		return err
	}
	k, err := chooseKind(ctx, kind)
	if err != nil {
		return err
	}
	if k == servers.Local {
		if err := servers.Install(ctx, say, servers.PostgresPackage, servers.RabbitPackage); err != nil {
			return err
		}
	}
	home, err := servers.TempHome(clone)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, home.Close()) }()
	ok, err := run(home, k)
	if ctx.Err() != nil {
		return errors.New("interrupted; nothing is left running")
	}
	if err == nil && ok {
		return nil
	}
	kept := filepath.Join(clone, ".baton", name+"-"+time.Now().Format("20060102-150405"))
	if keepErr := keepLogs(home, kept); keepErr != nil {
		return errors.Join(err, keepErr)
	}
	say("logs are kept in " + kept)
	return err
}

func keepLogs(home *servers.Home, dir string) error {
	logs, err := filepath.Glob(filepath.Join(home.Path(), "*.log"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, log := range logs {
		data, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(log)), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
