package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/samples"
	"example.com/baton/internal/testenv"
)

// Each peer handles all of a few messages and then, of more, those that it has
// time for; the program itself compares both with what the servers hold.
func TestPeers(t *testing.T) {
	t.Parallel()
	for peer := range peers {
		for _, queueType := range []string{amqp.QueueTypeClassic, amqp.QueueTypeQuorum} {
			t.Run(peer+"/"+queueType, func(t *testing.T) {
				t.Parallel()
				res := runPeer(t, peer, "--queue", queueType, "--messages", "150")
				if res.Peer != peer || res.Queue != queueType || res.Messages != 150 {
					t.Errorf("got %+v, want all 150 messages of %s on a %s queue", res, peer, queueType)
				}
				if res.PerSecond <= 0 || res.Seconds <= 0 || res.Guarantee == "" || res.Setup == "" {
					t.Errorf("got %+v, want a rate, a time, a guarantee and a setup", res)
				}
				if !strings.Contains(res.Version, " v") || strings.Contains(res.Version, "unknown") {
					t.Errorf("version is %q", res.Version)
				}
			})
		}
		t.Run(peer+"/stopped", func(t *testing.T) {
			t.Parallel()
			res := runPeer(t, peer, "--messages", "5000", "--atmost", "100ms")
			if res.Messages < 1 || res.Messages >= 5000 {
				t.Errorf("%d messages in 100 ms, want some", res.Messages)
			}
		})
	}
}

func runPeer(t *testing.T, peer string, flags ...string) result {
	t.Helper()
	database, vhost := testenv.Database(t), testenv.Vhost(t)
	var stdout, stderr bytes.Buffer
	args := append([]string{peer, "--database", database, "--amqp", vhost}, flags...)
	if err := run(t.Context(), args, noEnv, &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var res result
	if err := json.Unmarshal(stdout.Bytes(), &res); err != nil {
		t.Fatalf("%v in %s", err, &stdout)
	}
	if _, err := testenv.QueueDepth(vhost, queueName); err == nil {
		t.Error("it left its queue behind")
	}
	return res
}

// It neither works off nor deletes what somebody else has.
func TestWhatIsInUseIsRefused(t *testing.T) {
	t.Parallel()
	database, vhost := testenv.Database(t), testenv.Vhost(t)
	try := func() error {
		args := []string{"river", "--database", database, "--amqp", vhost, "--messages", "10"}
		return run(t.Context(), args, noEnv, io.Discard, io.Discard)
	}

	q, err := openQueue(vhost, amqp.QueueTypeQuorum)
	if err != nil {
		t.Fatal(err)
	}
	defer q.conn.Close()
	p, err := newPublisher(vhost, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if err := p.publish(t.Context(), samples.Events(1, "TEST")[0]); err != nil {
		t.Fatal(err)
	}
	if err := q.holds(t.Context(), 1, 1); err != nil {
		t.Fatal(err)
	}
	if err := try(); err == nil || !strings.Contains(err.Error(), "already holds 1 messages") {
		t.Errorf("with a message in the queue: %v", err)
	}
	if err := q.holds(t.Context(), 1, 1); err != nil {
		t.Error(err)
	}

	if _, err := testenv.Pool(t, database).Exec(t.Context(), `create table t (n int)`); err != nil {
		t.Fatal(err)
	}
	if err := try(); err == nil || !strings.Contains(err.Error(), "has 1 tables") {
		t.Errorf("with a table in the database: %v", err)
	}
}

// An unroutable message is confirmed as well, and must not count as sent.
func TestReturnedIsNotPublished(t *testing.T) {
	t.Parallel()
	vhost := testenv.Vhost(t)
	q, err := openQueue(vhost, amqp.QueueTypeClassic)
	if err != nil {
		t.Fatal(err)
	}
	defer q.conn.Close()
	p, err := newPublisher(vhost, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	m := samples.Events(1, "TEST")[0]
	m.Type = "nobody.wants.it"
	if err := p.publish(t.Context(), m); err == nil || !strings.Contains(err.Error(), "returned") {
		t.Errorf("got %v, want that it was returned", err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PEERS_DATABASE_URL": "postgres://db", "PEERS_AMQP_URL": "amqp://broker"}
	for _, args := range [][]string{
		{"river", "--database", "x", "--amqp", "y", "--queue", "classic"},
		{"--queue", "classic", "river"},
	} {
		s, err := readSettings(args, func(k string) string { return env[k] }, io.Discard)
		if err != nil || s.peer != "river" || s.queueType != "classic" || s.database != "postgres://db" || s.amqp != "amqp://broker" {
			t.Errorf("%q: got %+v (%v)", args, s, err)
		}
	}
	for _, args := range [][]string{{}, {"nobody"}, {"river", "river"}, {"river", "--queue", "stream"}, {"river", "--messages", "1"}} {
		if _, err := readSettings(args, func(k string) string { return env[k] }, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

func TestNoPasswordInErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"river", "--database", "postgres://u:secret@localhost:x/", "--amqp", "amqp://u:pw@localhost"},
		{"river", "--database", "postgres://localhost/", "--amqp", "amqp://u:secret@local host:x"},
		{"river", "--database", "postgres://localhost/", "--amqp", "http://u:secret@localhost"},
	} {
		var stderr bytes.Buffer
		err := run(t.Context(), args, noEnv, io.Discard, &stderr)
		if err == nil || strings.Contains(err.Error()+stderr.String(), "secret") {
			t.Errorf("%q: %v\n%s", args[1:], err, &stderr)
		}
	}
}

func noEnv(string) string { return "" }
