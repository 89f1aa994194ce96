package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	"example.com/baton/internal/wrongclock"
)

const day = 24 * time.Hour

// TestWrongClocks gives processes wall clocks that are wrong, from their start or
// by jumps while they work, by more than any lease, age or time of keeping.
// Those are the database's, so nothing changes: nothing is sent twice, too old,
// pruned, or stamped with another time. (B100)
func TestWrongClocks(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		WrongClocks: true,
		Lease:       30 * time.Second, // no lease runs out on a busy machine
		Env:         []string{"BATON_PRUNE_EVERY=100ms"},
	})
	order, inventory := s.Start()
	fast, slow := s.StartOrder(wrongclock.Offset+"=10m"), s.StartOrder(wrongclock.Offset+"=-48h")
	late := s.StartInventory(wrongclock.Offset + "=-48h")
	for p, want := range map[*system.Process]time.Duration{order: 0, fast: 10 * time.Minute, slow: -2 * day, late: -2 * day} {
		checkClock(t, p, want)
	}

	load := s.Load(100)
	for _, offset := range []time.Duration{10 * time.Minute, -10 * time.Minute, 60 * day, -60 * day} {
		// The clock jumps where it would hurt most: with messages in hand.
		jump(t, order, "relay.claimed", offset)
		jump(t, inventory, "consumer.received", -offset)
		for _, o := range s.Place(20)[:5] {
			s.Cancel(o)
		}
		checkClock(t, order, offset)
		checkClock(t, inventory, -offset)
	}
	order.Disarm()
	checkClock(t, order, 0)
	load.Stop()
	s.Settled()
	s.Exact()

	if extra := s.Extra(); extra > 0 {
		t.Errorf("%d copies more than events: a lease was not what the database says", extra)
	}
	const strangeSQL = `
select count(*) filter (where abs(extract(epoch from o.created_at - m.created_at)) > 60),
       count(*) filter (where to_char(o.created_at at time zone 'utc', 'YYYYMMDD') <> split_part(o.order_id, '-', 2))
from orders o join outbox_messages m using (event_id)`
	var wrongTimes, wrongDays int
	if err := s.OrderDB.QueryRow(t.Context(), strangeSQL).Scan(&wrongTimes, &wrongDays); err != nil {
		t.Fatal(err)
	}
	if wrongTimes+wrongDays > 0 {
		t.Errorf("%d orders bear a time that is not the database's, %d a day", wrongTimes, wrongDays)
	}
	for id := range s.Copies() {
		u, err := ulid.ParseStrict(id)
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Since(u.Timestamp()); off < -time.Minute || off > 10*time.Minute {
			t.Errorf("event %s is of %s", id, u.Timestamp())
		}
	}
}

// B100: a relay whose clock is fast leaves alone what another one, whose clock is
// slow, has claimed and still holds.
func TestFastClockStealsNoClaim(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{WrongClocks: true, Lease: 2 * time.Minute})
	holder, _ := s.Start()
	var ids []string
	for _, o := range s.Place(30) {
		ids = append(ids, o.EventID)
	}
	s.Settled()
	again := func(ids ...string) {
		t.Helper()
		const againSQL = `update outbox_messages set status = 'Pending', published_at = null, next_attempt_at = now() where event_id = any ($1)`
		if _, err := s.OrderDB.Exec(t.Context(), againSQL, ids); err != nil {
			t.Fatal(err)
		}
	}
	// It holds ten rows, and renews nothing.
	holder.Arm(faults.Fault{Step: "relay.claimed", Action: faults.Clock, Offset: faults.Duration(-2 * day)})
	holder.Arm(faults.Fault{Step: "relay.claimed", Action: faults.Stop})
	held, others := ids[:10], ids[10:]
	again(held...)
	holder.WaitStopped("relay.claimed")
	fast := s.StartOrder(wrongclock.Offset+"=10m", "BATON_RELAY_POLL=50ms")
	checkClock(t, fast, 10*time.Minute)

	// Each of the others shows that the fast relay has looked for what is due.
	for _, id := range others {
		again(id)
		testenv.Eventually(t, time.Minute, "the fast relay sends", func() error {
			var open int
			const openSQL = `select count(*) from outbox_messages where event_id = $1 and published_at is null`
			if err := s.OrderDB.QueryRow(t.Context(), openSQL, id).Scan(&open); err != nil || open > 0 {
				return fmt.Errorf("not yet (%v)", err)
			}
			return nil
		})
	}
	var left int
	const heldSQL = `select count(*) from outbox_messages where event_id = any ($1) and status = 'Processing' and claim_count = 1`
	if err := s.OrderDB.QueryRow(t.Context(), heldSQL, held).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != len(held) {
		t.Errorf("%d of %d rows are still the holder's", left, len(held))
	}
	holder.Thaw()
	s.Settled()
	s.Exact()
	if extra := s.Extra(); extra != len(ids) {
		t.Errorf("%d messages were sent again, %d were to be", extra, len(ids))
	}
	if lost := holder.Metric("baton_relay_lease_lost_total"); lost > 0 {
		t.Errorf("%v claims were lost", lost)
	}
}

// jump sets the clock of p wrong when it has something in hand at step.
func jump(t *testing.T, p *system.Process, step string, offset time.Duration) {
	t.Helper()
	p.Arm(faults.Fault{Step: step, Action: faults.Clock, Offset: faults.Duration(offset)})
}

// checkClock looks at the clock of a process, which is to be wrong by offset.
func checkClock(t *testing.T, p *system.Process, offset time.Duration) {
	t.Helper()
	testenv.Eventually(t, time.Minute, p.Name+" has another clock", func() error {
		res, err := http.Get(p.URL() + "/livez")
		if err != nil {
			return err
		}
		res.Body.Close()
		date, err := http.ParseTime(res.Header.Get("Date"))
		if err != nil {
			return err
		}
		if off := time.Until(date); (off - offset).Abs() > time.Minute {
			return fmt.Errorf("it is wrong by %s, want %s", off, offset)
		}
		return nil
	})
}
