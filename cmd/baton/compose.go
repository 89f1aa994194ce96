package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"example.com/baton/internal/servers"
)

func composeAnswers(ctx context.Context) bool {
	if !servers.DockerAnswers(ctx) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "compose", "version").Run() == nil
}

// upDocker is up by docker-compose.yml, which restarts what dies by itself.
func upDocker(ctx context.Context, say func(string), out io.Writer, opts upOptions) (err error) {
	say("docker compose up --wait (--local runs without Docker)")
	defer func() {
		say("docker compose down")
		err = errors.Join(err, compose(context.WithoutCancel(ctx), "down"))
	}()
	rabbitPort, err := publish(opts)
	if err != nil {
		return err
	}
	if err := compose(ctx, "up", "--build", "--wait"); err != nil {
		return err
	}
	w := walk{order: "http://" + opts.orderAddr, inventory: "http://" + opts.inventoryAddr, out: out}
	if err := w.placeOne(ctx); err != nil {
		return err
	}
	w.whatNow("docker compose run --rm --no-deps setup baton check", opts.nameFlag(),
		"RabbitMQ   http://127.0.0.1:"+rabbitPort+"  management page, user admin",
		"passwords  docker-compose.yml says how they are set",
		"logs       docker compose logs",
	)
	<-ctx.Done()
	return nil
}

// publish sets the variables by which docker-compose.yml chooses its ports on
// this machine. It publishes on 127.0.0.1 only.
func publish(opts upOptions) (rabbitPort string, err error) {
	for variable, addr := range map[string]string{"ORDER_PORT": opts.orderAddr, "INVENTORY_PORT": opts.inventoryAddr} {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return "", err
		}
		if host != "127.0.0.1" && host != "localhost" {
			return "", fmt.Errorf("address %s: docker-compose.yml publishes on 127.0.0.1 only", addr)
		}
		if err := os.Setenv(variable, port); err != nil {
			return "", err
		}
	}
	rabbitPort = cmp.Or(os.Getenv("RABBITMQ_PORT"), "15672")
	l, err := net.Listen("tcp", "127.0.0.1:"+rabbitPort)
	if err != nil { // a RabbitMQ of this machine, most likely
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return "", err
		}
		rabbitPort = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	return rabbitPort, errors.Join(l.Close(), os.Setenv("RABBITMQ_PORT", rabbitPort))
}

// compose runs docker compose and shows its own progress.
func compose(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"compose"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	return cmd.Run()
}
