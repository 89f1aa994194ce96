package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/samples"
	"example.com/baton/internal/stack"
)

// peer is a program of bench/peers and what is compared with it.
type peer struct {
	name     string
	id       string // of the comparison
	messages int    // more than it handles in the time it has
	consumer bool
}

var peersMeasured = []peer{
	{"watermill-tuned", "R3", 60_000, false},
	{"watermill-documented", "R4", 15_000, false},
	{"river-tuned", "P1", 120_000, false},
	{"river", "P2", 30_000, false},
	{"watermill-router", "C2", 40_000, true},
	{"watermill-router-default", "P3", 20_000, true},
}

// atLeast is for how long a peer runs.
const atLeast, atMost = 10 * time.Second, 20 * time.Second

// peers compares the product with other ways to do the same: in each round the
// product first, then each of them. The relays publish to a classic queue, the
// consumers take from a quorum queue.
func (r *run) peers(ctx context.Context) error {
	program := filepath.Join(r.Home.Path(), "bin", "peers")
	build := exec.CommandContext(ctx, "go", "build", "-C", r.Peers, "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", r.Peers, err, out)
	}
	for range r.Pairs {
		relayed, err := r.relay(ctx, "classic", samples.Events(messages, r.prefix()), r.stack.Orders[0])
		if err != nil {
			return err
		}
		if err := errors.Join(r.stop(ctx), r.ownQueue(ctx)); err != nil {
			return err
		}
		consumed, err := r.consume(ctx, samples.Events(messages, r.prefix()))
		if err != nil {
			return err
		}
		if err := errors.Join(r.stop(ctx), r.clear(ctx)); err != nil {
			return err
		}
		for _, p := range peersMeasured {
			result, err := r.peer(ctx, program, p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			r.rep.Peers = append(r.rep.Peers, result)
			ours := relayed
			if p.consumer {
				ours = consumed
			}
			r.note(p.id, Pair{result.PerSecond, ours})
		}
	}
	return nil
}

// peer runs a program once, in a database and a vhost of its own.
func (r *run) peer(ctx context.Context, program string, p peer) (result Peer, err error) {
	const name = "bench_peers"
	management, err := provision.NewManagement(r.stack.Broker.ManagementURL())
	if err != nil {
		return result, err
	}
	remove := func() error {
		ctx := context.WithoutCancel(ctx)
		_, err := r.orders.Exec(ctx, `drop database if exists `+name+` with (force)`)
		return errors.Join(err, management.Do(ctx, http.MethodDelete, provision.Path("vhosts", name), nil, nil))
	}
	if _, err := r.orders.Exec(ctx, `create database `+name); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := management.Do(ctx, http.MethodPut, provision.Path("vhosts", name), nil, nil); err != nil {
		return result, err
	}
	queue := "classic"
	if p.consumer {
		queue = "quorum"
	}
	cmd := exec.CommandContext(ctx, program, "--queue", queue, "--messages", fmt.Sprint(p.messages),
		"--atleast", atLeast.String(), "--atmost", atMost.String(), p.name)
	database := strings.Replace(r.stack.AdminURL(stack.Order), "/"+stack.Order.Database+"?", "/"+name+"?", 1)
	cmd.Env = append(os.Environ(), "PEERS_DATABASE_URL="+database, "PEERS_AMQP_URL="+r.stack.Broker.AdminURL(name))
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return result, fmt.Errorf("%w\n%s", err, said.Bytes())
	}
	return result, json.Unmarshal(out.Bytes(), &result)
}
