package e2e

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// TestWokenNotPolled places orders one at a time with relays that poll once an
// hour: each is reserved all the same, because whoever commits an event wakes
// its relay.
func TestWokenNotPolled(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Env: []string{"BATON_RELAY_POLL=1h"}})
	order, _ := s.Start()
	var took []time.Duration
	for range 20 {
		o := s.Place(1)[0]
		accepted := time.Now()
		testenv.Eventually(t, 30*time.Second, "reserved", func() error {
			_, body, err := order.Get("/orders/" + o.OrderID)
			if err != nil {
				return err
			}
			var got struct{ Status string }
			if err := json.Unmarshal(body, &got); err != nil {
				return err
			}
			return testenv.Want(got.Status, "reserved")
		})
		took = append(took, time.Since(accepted))
	}
	slices.Sort(took)
	t.Logf("reserved %s after its 201 at the median, %s at most", took[len(took)/2], took[len(took)-1])
	s.Settled()
	s.Exact()
}
