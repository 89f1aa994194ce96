package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

var stalls = []struct {
	step  string
	hits  int // calls at the step that pass before
	again again
}{
	{"relay.claimed", 5, never},
	{"relay.sent", 60, always},
	{"relay.confirmed", 5, always},
}

// TestStall stops an order process by SIGSTOP at a step of its relay, for longer
// than its lease, has a second process take over, and lets the first go on. That
// one finds its claims lost: it may not send under them any more, nor settle, and
// what the other has written stays. (B01)
func TestStall(t *testing.T) {
	t.Parallel()
	for _, stall := range stalls {
		t.Run(stall.step, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{})
			first, inventory := s.Start()
			first.Arm(faults.Fault{Step: stall.step, Action: faults.Stop, After: stall.hits})
			load := s.Load(100)
			inHand := first.WaitStopped(stall.step)
			s.StartOrder()
			testenv.Eventually(t, 30*time.Second, "the second process takes over", func() error {
				var published int
				err := s.OrderDB.QueryRow(t.Context(), publishedSQL, inHand).Scan(&published)
				if err == nil && published < len(inHand) {
					err = fmt.Errorf("%d of %d published", published, len(inHand))
				}
				return err
			})
			before := settledRows(t, s, inHand)
			first.Thaw()
			testenv.Eventually(t, 30*time.Second, "the first process finds its claims lost", func() error {
				if lost := first.Metric("baton_relay_lease_lost_total"); lost < float64(len(inHand)) {
					return fmt.Errorf("%v claims lost of %d", lost, len(inHand))
				}
				return nil
			})
			if after := settledRows(t, s, inHand); !slices.Equal(after, before) {
				t.Errorf("the second process had left the rows as\n%v\nand now they are\n%v", before, after)
			}
			if !regexp.MustCompile(`claim lost|leases lost|lease was lost`).MatchString(first.Log()) {
				t.Errorf("the first process does not say that it lost its claims:\n%s", first.Log())
			}
			load.Stop()
			s.Settled()
			s.Exact()
			checkCopies(t, stall.again, inHand, s, inventory)
		})
	}
}

// settledRows is what an owner of rows has left in them.
func settledRows(t *testing.T, s *system.System, ids []string) []string {
	t.Helper()
	const rowsSQL = `
select concat_ws(' ', event_id, status, published_at, locked_by, attempt_count, last_error)
from outbox_messages where event_id = any ($1) order by event_id`
	rows, err := s.OrderDB.Query(t.Context(), rowsSQL, ids)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const publishedSQL = `select count(*) from outbox_messages where event_id = any ($1) and published_at is not null`
