package e2e

import (
	"testing"
	"time"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/system"
)

// TestWrongClocks gives the processes clocks that are wrong by minutes and by
// days, differently. Leases, ages and times are the database's, so nothing
// changes.
func TestWrongClocks(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order, inventory := s.Start()
	const day = 24 * time.Hour
	for _, offset := range []time.Duration{10 * time.Minute, -10 * time.Minute, 10 * day, -10 * day} {
		order.Arm(faults.Fault{Action: faults.Clock, Offset: faults.Duration(offset)})
		inventory.Arm(faults.Fault{Action: faults.Clock, Offset: faults.Duration(-offset)})
		orders := s.Place(20)
		for _, o := range orders[:5] {
			s.Cancel(o)
		}
		order.Disarm()
		inventory.Disarm()
	}
	s.Settled()
	s.Exact()
	var wrong int
	const count = `select count(*) from orders where abs(extract(epoch from now() - created_at)) > 300`
	if err := s.OrderDB.QueryRow(t.Context(), count).Scan(&wrong); err != nil {
		t.Fatal(err)
	}
	if wrong > 0 {
		t.Errorf("%d orders bear a time that is not the database's", wrong)
	}
}
