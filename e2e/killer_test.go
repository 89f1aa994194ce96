package e2e

import (
	"testing"
	"time"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

// keepAlive restarts p whenever the fault kills it, with the fault armed again,
// as a supervisor would restart a program with a bug. It returns when done does
// not fail any more, and how often p has died until then.
func keepAlive(t *testing.T, p *system.Process, bug faults.Fault, what string, done func() error) (deaths int) {
	t.Helper()
	p.RestartArmed(bug)
	testenv.Eventually(t, 3*time.Minute, what, func() error {
		if !p.Running() {
			p.WaitCrash(bug.Step)
			deaths++
			p.RestartArmed(bug)
		}
		return done()
	})
	return deaths
}

var killerSteps = []string{"relay.claimed", "relay.sent"}

// TestKillerRow has one row among 500 that kills every relay that claims it, or
// every relay that sends it. The relay finds out which one it is, and the others
// leave.
func TestKillerRow(t *testing.T) {
	t.Parallel()
	for _, step := range killerSteps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			// Each death costs a lease.
			s := system.New(t, system.Options{Lease: time.Second})
			order, _ := s.Start()
			order.Stop()
			mute := s.StartOrder(noBroker)
			orders := s.Place(500)
			mute.Stop()

			killer := orders[250]
			bug := faults.Fault{Step: step, Action: faults.Crash, Match: killer.EventID, Times: 1000}
			late := false
			deaths := keepAlive(t, order, bug, "the killer Failed and the others Published", func() error {
				var published, failed int
				const count = `select count(published_at), count(failed_at) from outbox_messages`
				if err := s.OrderDB.QueryRow(t.Context(), count).Scan(&published, &failed); err != nil {
					return err
				}
				if step == outbox.StepSent && published == 500 {
					late = true // on a busy machine the confirm may be written down before the kill
					return nil
				}
				return testenv.Want([2]int{published, failed}, [2]int{499, 1})
			})
			t.Logf("the order service died %d times", deaths)
			if late {
				t.Log("the last kill came after the row was settled: it is Published, and there was nothing to give up")
			}
			if deaths < 10 && !late {
				t.Errorf("the row was given up after %d deaths, want at least the ten for which it alone can be blamed", deaths)
			}
			s.Settled()
			s.Exact(killer.EventID)
			outcome := map[string]string{
				"relay.claimed": "created",  // it has never left
				"relay.sent":    "reserved", // it has arrived each time, and counts once
			}[step]
			var status string
			if err := s.OrderDB.QueryRow(t.Context(), `select status from orders where order_id = $1`, killer.OrderID).Scan(&status); err != nil || status != outcome {
				t.Errorf("the killer's order is %q (%v), want %s", status, err, outcome)
			}
		})
	}
}

// noBroker is for an order process that is to take orders and send nothing:
// without a broker its relay claims nothing.
const noBroker = "ORDER_AMQP_URL=amqp://nobody@127.0.0.1:1/"

// TestKillerMessage has one message among 500 that kills every consumer that
// receives it.
func TestKillerMessage(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	_, inventory := s.Start()
	inventory.Stop()
	orders := s.Place(500) // they wait in the queue for the consumer with the bug

	killer := orders[250].EventID
	bug := faults.Fault{Step: "consumer.received", Action: faults.Crash, Match: killer, Times: 1000}
	deaths := keepAlive(t, inventory, bug, "the killer dead-lettered and the others reserved", func() error {
		var reserved int
		const count = `select count(*) from inventory_orders where state = 'reserved'`
		if err := s.InventoryDB.QueryRow(t.Context(), count).Scan(&reserved); err != nil {
			return err
		}
		dead, err := testenv.QueueDepth(s.Vhost, system.InventoryQueue+".dlq")
		if err != nil {
			return err
		}
		return testenv.Want([2]int{reserved, dead}, [2]int{499, 1})
	})
	t.Logf("the inventory service died %d times", deaths)
	if deaths < 10 {
		t.Errorf("the message was given up after %d deaths, want at least the ten for which it alone can be blamed", deaths)
	}
	s.Settled()
	s.Exact(killer)
}
