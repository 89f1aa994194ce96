package testenv_test

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/testenv"
)

func TestSchema(t *testing.T) {
	t.Parallel()
	// Two schemas with the same table in one database.
	for range 2 {
		pool := testenv.Schema(t)
		if _, err := pool.Exec(t.Context(), `create table t (n int)`); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVhostAndManagement(t *testing.T) {
	t.Parallel()
	url := testenv.Vhost(t)
	ch := testenv.Channel(t, url)
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.ExchangeDeclare("e", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("q", "a.b", "e", false, nil); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := ch.PublishWithContext(t.Context(), "e", "a.b", true, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, 5*time.Second, "queue depth", func() error {
		n, err := testenv.QueueDepth(url, "q")
		return errors.Join(err, testenv.Want(n, 3))
	})
	if _, _, err := ch.Get("q", false); err != nil {
		t.Fatal(err)
	}

	m := testenv.Management(t, url)
	testenv.Eventually(t, 20*time.Second, "sampled counts", func() error {
		queues, err := m.Queues(t.Context())
		q := queues["q"]
		return errors.Join(err, testenv.Want(q.Ready, 2), testenv.Want(q.Unacked, 1), testenv.Want(q.Type, "quorum"))
	})
	bindings, err := m.Bindings(t.Context())
	if err != nil || len(bindings) != 1 {
		t.Fatalf("bindings: %v %v, want one", bindings, err)
	}
	if err := m.DeleteBinding(t.Context(), "e", "q", "a.b"); err != nil {
		t.Error(err)
	}
	if bindings, err := m.Bindings(t.Context()); err != nil || len(bindings) != 0 {
		t.Errorf("bindings: %v %v, want none", bindings, err)
	}
	testenv.Eventually(t, 10*time.Second, "a connection to close", func() error {
		n, err := m.CloseConnections(t.Context())
		if n == 0 && err == nil {
			return errors.New("none is listed")
		}
		return err
	})
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Error("the connection is still open")
	}
}

func TestLoggerAfterTheEnd(t *testing.T) {
	t.Parallel()
	var log interface{ Info(string, ...any) }
	t.Run("", func(t *testing.T) {
		logger := testenv.Logger(t)
		logger.Info("during the test")
		log = logger
	})
	log.Info("after it: t.Log would panic")
}
