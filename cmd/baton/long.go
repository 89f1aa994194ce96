package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"example.com/baton/internal/servers"
)

// longRun gives a long run a Home of its own and the kind of servers to use, with
// their programs installed. The logs of a run that is not ok, and was not
// interrupted, are kept in a folder called after it.
func longRun(ctx context.Context, say func(string), name, kind string, run func(*servers.Home, servers.Kind) (ok bool, err error)) error {
	clone, home, k, err := tempHome(ctx, say, kind)
	if err != nil {
		return err
	}
	// What follows must not cost the result of a long run, so it is only told.
	tell := func(err error) {
		if err != nil {
			say(err.Error())
		}
	}
	defer func() { tell(home.Close()) }()
	ok, err := run(home, k)
	switch {
	case err == nil && ok:
	case ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())):
		return errors.New("interrupted; nothing is left running")
	default:
		kept := filepath.Join(clone, ".baton", name+"-"+time.Now().Format("20060102-150405"))
		tell(keepLogs(home, kept))
		say("logs are kept in " + kept)
	}
	return err
}

// reportPage is checked before a long run, not after it.
func reportPage(file, page string) error {
	if file == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(file), page)); err != nil {
		return fmt.Errorf("--report %s: the page that shows it has to be beside it: %w", file, err)
	}
	return nil
}

// conclude prints the result of a long run and then, unless file is empty, writes
// it there.
func conclude(cmd *cobra.Command, asJSON, ok bool, result any, text, file string, write func(file string) error) error {
	err := report(cmd, asJSON, result, text)
	if file != "" {
		err = errors.Join(err, write(file))
	}
	if err == nil && !ok {
		return exitCode(1)
	}
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
