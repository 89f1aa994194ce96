package servers

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// The images that Docker servers run, the upper end of what Baton supports.
const (
	postgresImage = "postgres:18"
	rabbitImage   = "rabbitmq:4.3-management"
)

// container runs a program in a container of the local Docker engine. It is
// made by the first prepare and removed by release, so a restart keeps data and
// ports.
type container struct {
	name   string
	create []string          // arguments of docker create after the name: options, image, command
	env    []string          // for options like "--env NAME", so that passwords stay out of the process list
	files  map[string]string // copied in before the first start: path -> content

	mu   sync.Mutex
	made bool
}

// label marks every container of a Home, so that those of a killed owner are
// found.
func label(h *Home) string { return "baton.home=" + h.path }

func (c *container) prepare(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made {
		return nil
	}
	cmd := exec.CommandContext(ctx, "docker", append([]string{"create", "--name", c.name}, c.create...)...)
	cmd.Env = append(cmd.Environ(), c.env...)
	cmd.SysProcAttr = ownGroup()
	if _, err := combined(cmd); err != nil {
		return err
	}
	c.made = true
	if len(c.files) == 0 {
		return nil
	}
	archive, err := c.archive()
	if err != nil {
		return err
	}
	cp := exec.CommandContext(ctx, "docker", "cp", "-", c.name+":/")
	cp.Stdin = archive
	cp.SysProcAttr = ownGroup()
	_, err = combined(cp)
	return err
}

// archive is files as docker cp wants them. They belong to root and are open to
// all inside the container, whose server runs as a user we do not know.
func (c *container) archive() (*bytes.Buffer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for path, content := range c.files {
		h := &tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: 0o644, Size: int64(len(content))}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(content)); err != nil {
			return nil, err
		}
	}
	return &buf, w.Close()
}

func (c *container) launch(ctx context.Context) (<-chan error, error) {
	if _, err := docker(ctx, "start", c.name); err != nil {
		return nil, err
	}
	wait := exec.Command("docker", "wait", c.name)
	wait.SysProcAttr = ownGroup()
	ended := make(chan error, 1)
	go func() { // ends with the container
		out, err := combined(wait)
		if code, convErr := strconv.Atoi(out); err == nil && convErr == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		ended <- err
	}()
	return ended, nil
}

func (c *container) signal(ctx context.Context, sig syscall.Signal) error {
	_, err := docker(ctx, "kill", "--signal", strconv.Itoa(int(sig)), c.name)
	if err != nil && strings.Contains(err.Error(), "is not running") {
		return nil
	}
	return err
}

func (c *container) started() error { return nil }

func (c *container) release(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.made {
		return nil
	}
	if _, err := docker(ctx, "rm", "--force", "--volumes", c.name); err != nil {
		return err
	}
	c.made = false
	return nil
}

func (c *container) log(ctx context.Context) string {
	out, _ := docker(ctx, "logs", "--tail", "15", c.name) // it only adds to another error
	return out
}

func docker(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.SysProcAttr = ownGroup()
	return combined(cmd)
}

// removeContainers removes those that a killed owner of h left.
func removeContainers(ctx context.Context, h *Home) error {
	if _, err := exec.LookPath("docker"); err != nil {
		return nil
	}
	ids, err := docker(ctx, "ps", "--all", "--quiet", "--filter", "label="+label(h))
	if err != nil || ids == "" {
		return nil // an engine that does not answer holds nothing of ours that runs
	}
	_, err = docker(ctx, append([]string{"rm", "--force", "--volumes"}, strings.Fields(ids)...)...)
	return err
}
