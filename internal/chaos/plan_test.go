package chaos

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestPlanIsThatOfItsSeed(t *testing.T) {
	t.Parallel()
	same := cmpopts.IgnoreUnexported(Step{})
	if diff := cmp.Diff(Plan(42, 3*time.Minute), Plan(42, 3*time.Minute), same); diff != "" {
		t.Errorf("same seed, other plan:\n%s", diff)
	}
	if cmp.Equal(Plan(42, 3*time.Minute), Plan(43, 3*time.Minute), same) {
		t.Error("other seed, same plan")
	}
}

// What happens in three minutes: each kind, whatever the seed, and all of it is
// over in time.
func TestPlanHasEachKind(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		const duration = 3 * time.Minute
		counts := map[Kind]int{}
		for _, s := range Plan(seed, duration) {
			counts[s.Kind]++
			if s.At < 0 || s.At+s.takes() > duration {
				t.Errorf("seed %d: %s is not over in %s", seed, s, duration)
			}
			if (s.Kind == Stop || s.Kind == StopAtStep) && s.Lasts <= Lease {
				t.Errorf("seed %d: %s does not outlast the lease of %s", seed, s, Lease)
			}
		}
		if got, want := slices.Sorted(maps.Keys(counts)), slices.Sorted(slices.Values(Kinds())); !slices.Equal(got, want) {
			t.Errorf("seed %d: kinds %v, want %v", seed, got, want)
		}
	}
}

// A long run visits every step at which a process can die, every process and
// every binding; a short one is short.
func TestPlanOfOtherLengths(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	plan := Plan(1, 30*time.Minute)
	for _, s := range plan {
		seen[s.Target[:len(s.Target)-2]+" "+s.Point] = true
		seen[s.Target] = true
	}
	for service, steps := range points {
		for _, step := range steps {
			if !seen[service+" "+step] {
				t.Errorf("nothing happens at %s of %s", step, service)
			}
		}
	}
	for _, b := range bindings {
		if !seen[b.String()] {
			t.Errorf("the binding %s is never deleted", b)
		}
	}
	if n, want := len(plan), 10*len(Kinds()); n < want {
		t.Errorf("%d faults in half an hour, want %d or more", n, want)
	}

	short := Plan(1, 45*time.Second)
	missing := Kinds()
	last := make([]time.Duration, len(tracks))
	for _, s := range short {
		missing = slices.DeleteFunc(missing, func(k Kind) bool { return k == s.Kind })
		if s.At < last[s.track] {
			t.Errorf("%s begins before the one before it is over", s)
		}
		last[s.track] = s.At + s.takes()
	}
	if longest := slices.Max(last); longest > 75*time.Second || len(missing) > 0 {
		t.Errorf("a short run takes %s and leaves out %v", longest, missing)
	}
}
