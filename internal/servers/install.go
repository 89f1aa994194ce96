package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Package is something that a package manager can bring, by Debian's name.
type Package string

const (
	PostgresPackage Package = "postgresql"
	RabbitPackage   Package = "rabbitmq-server"
	PoolerPackage   Package = "pgbouncer"
	CompilerPackage Package = "gcc" // what go test -race needs
)

// Present reports whether its programs are on this machine.
func (p Package) Present() bool {
	switch p {
	case PostgresPackage:
		return postgresBin() != ""
	case RabbitPackage:
		return rabbitBin() != ""
	case PoolerPackage:
		return poolerPath() != ""
	}
	_, err := exec.LookPath(string(p))
	return err == nil
}

// needs is what apt-get does not bring by itself.
var needs = map[Package][]string{CompilerPackage: {"libc6-dev"}}

// Installed reports whether the programs of local servers are on this machine.
func Installed() bool { return PostgresPackage.Present() && RabbitPackage.Present() }

// Install makes sure that the packages' programs exist. As root on Debian or
// Ubuntu it installs what is missing with apt-get, and keeps the packages'
// own services from starting, now and at the next boot; elsewhere the error is
// the command to type.
//
// progress receives one line for each step; nil is silence.
func Install(ctx context.Context, progress func(line string), packages ...Package) error {
	say := Config{Progress: progress}.say
	packages = slices.DeleteFunc(slices.Clone(packages), Package.Present)
	if len(packages) == 0 {
		return nil
	}
	var names []string
	for _, p := range packages {
		names = append(append(names, string(p)), needs[p]...)
	}
	_, err := exec.LookPath("apt-get")
	switch {
	case err == nil && os.Geteuid() != 0:
		return fmt.Errorf("something is missing on this machine; type: sudo apt-get install %s", strings.Join(names, " "))
	case err != nil:
		return fmt.Errorf("something is missing on this machine; install PostgreSQL %s or newer, RabbitMQ %s or newer and a C compiler with its package manager, or start a Docker engine",
			minPostgres, minRabbitMQ)
	}

	say("installing %s with apt-get (about a minute)", strings.Join(names, " "))
	allow, err := denyServiceStarts()
	if err != nil {
		return fmt.Errorf("keep services from starting during the install: %w", err)
	}
	err = aptGet(ctx, say, names)
	if allowErr := allow(); allowErr != nil {
		err = errors.Join(err, allowErr)
	}
	if err != nil {
		return err
	}
	keepOff(ctx, say, packages)

	for _, p := range packages {
		if !p.Present() {
			return fmt.Errorf("apt-get installed %s, but its programs are not where they are expected", p)
		}
	}
	return nil
}

// policyFile is where Debian's maintainer scripts ask whether they may start a
// service (invoke-rc.d(8)).
const policyFile = "/usr/sbin/policy-rc.d"

// denyServiceStarts answers "no" (101) to every service start until the
// function it returns is called. A policy that was there is put back.
func denyServiceStarts() (allow func() error, err error) {
	const (
		aside = policyFile + ".before-baton"
		deny  = "#!/bin/sh\n# written by baton for the time of an install\nexit 101\n"
	)
	// A run that was killed has left our own file: that is not the machine's
	// policy.
	if old, err := os.ReadFile(policyFile); err == nil && string(old) != deny {
		if err := os.Rename(policyFile, aside); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(policyFile, []byte(deny), 0o755); err != nil {
		return nil, err
	}
	return func() error {
		if err := os.Rename(aside, policyFile); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Remove(policyFile)
	}, nil
}

func aptGet(ctx context.Context, say func(string, ...any), packages []string) error {
	if err := runApt(ctx, say, "update", "-q"); err != nil {
		return err
	}
	return runApt(ctx, say, append([]string{"install", "-q", "-y", "--no-install-recommends"}, packages...)...)
}

func runApt(ctx context.Context, say func(string, ...any), args ...string) error {
	// Not killed when ctx ends: a package half configured would be the
	// user's to mend. SIGTERM lets apt-get stop where it may.
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=120"}, args...)...)
	cmd.Cancel = func() error { return terminate(cmd.Process) }
	cmd.WaitDelay = 2 * time.Minute
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	cmd.SysProcAttr = ownGroup()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("apt-get: %w", err)
	}
	var tail []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		if tail = append(tail, line); len(tail) > 15 {
			tail = tail[1:]
		}
		for _, telling := range []string{"Need to get ", "Setting up "} {
			if strings.HasPrefix(line, telling) {
				say("apt-get: %s", line)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, strings.Join(tail, "\n"))
	}
	return nil
}

// keepOff makes the services that we just brought to the machine stay off at
// its next boot: the user asked for Baton, not for servers on 5432 and 5672.
func keepOff(ctx context.Context, say func(string, ...any), packages []Package) {
	if _, err := exec.LookPath("systemctl"); err != nil {
		return
	}
	for _, p := range packages {
		if p == CompilerPackage {
			continue
		}
		// The service is called like its package.
		if out, err := exec.CommandContext(ctx, "systemctl", "disable", "--quiet", string(p)).CombinedOutput(); err != nil {
			say("note: %s may start at the next boot: %s", p, strings.TrimSpace(string(out)))
		}
	}
}
