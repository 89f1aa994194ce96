package zoo

import (
	"fmt"
	"testing"

	"example.com/baton/internal/check"
)

// TestMistakes plays for each mistake what it cannot stand, first with the
// product in its place, which nothing must come of, then with the mistake, which
// the checker must catch by the rule that is told.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, m := range Mistakes() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			play, ok := scenarios[m.Name]
			if !ok {
				t.Fatal("nothing is played for it")
			}
			w := newWorld(t, m)
			w.play(play)
			if err := check.Settle(t.Context(), w.src, patience); err != nil {
				t.Fatalf("with the product: %v", err)
			}
			if r := w.look(play.noFaults); !r.OK {
				t.Fatalf("with the product: %+v", r.Violations)
			}
			w.forget()

			w.wrong = true
			w.play(play)
			w.until("the checker finds "+m.Rule, func() error {
				r := w.look(play.noFaults)
				v, found := violation(r, m.Rule)
				if !found {
					return fmt.Errorf("it finds %+v", r.Violations)
				}
				t.Logf("%s: %s", v.Rule, v.Detail)
				return nil
			})
		})
	}
}
