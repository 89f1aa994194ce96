package outage

import (
	"errors"
	"testing"
	"time"

	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// All connections are closed again and again. What was on its way is sent and
// delivered again, and nothing of a dead session is left over. (B25, B32)
func TestConnectionsClosed(t *testing.T) {
	t.Parallel()
	w := begin(t, setup{})
	closed := 0
	w.under(func() {
		for until := time.Now().Add(lasts(time.Minute, 4*time.Minute)); time.Now().Before(until); pause(t, 2*time.Second) {
			n, err := w.Broker.CloseConnections(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			closed += n
		}
	})
	if t.Logf("%d connections closed", closed); closed < 10*w.start.connections {
		t.Errorf("%d connections were closed, want at least %d", closed, 10*w.start.connections)
	}
	w.recovered()
	t.Logf("%d messages were sent again, %d deliveries repeated, %d of them absorbed by an inbox", w.Extra(),
		w.sum("baton_consumer_redelivered_total", w.all()...), w.sum("baton_inbox_duplicates_total", w.all()...))
	if w.sum("baton_consumer_redelivered_total", w.all()...) == 0 {
		t.Error("no delivery was repeated: the connections were closed in vain")
	}
	wantNobodyBlamed(t, w)
}

// Connections are lost again and again while deliveries are held, so that each of
// them looks as if it had killed its consumer. None has, and none is given up.
func TestConnectionsClosedWhileHolding(t *testing.T) {
	t.Parallel()
	w := begin(t, setup{processes: 1})
	p := &patient{t: t, db: w.InventoryDB, role: serviceRole(t, w.InventoryDB)}
	end := revoke("inbox_messages, inbox_suspects")(p)
	w.Place(200)
	for range int(lasts(7, 30)) {
		listed(t, w.System, len(w.all()))
		testenv.Eventually(t, 20*time.Second, "all deliveries are back", func() error {
			queues, err := w.Broker.Queues(t.Context())
			return errors.Join(err, testenv.Want(queues[system.InventoryQueue].Unacked, 200))
		})
		if _, err := w.Broker.CloseConnections(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	end()
	w.recovered()
	wantNobodyBlamed(t, w)
}
