package testenv

import (
	"iter"
	"os"
	"testing"
	"time"
)

// Explore runs f on every script, or on evenly spaced ones if there are more
// than limit, and logs how many. It stops at the first that fails. The nightly
// run has thirty times the limit and begins at another script each day, and
// BATON_EXPLORE=all leaves none out.
func Explore[S any](t *testing.T, scripts iter.Seq[S], limit int, f func(*testing.T, S)) {
	t.Helper()
	all := 0
	for range scripts {
		all++
	}
	first := 0
	if os.Getenv("BATON_NIGHTLY") == "1" {
		limit *= 30
		first = int(time.Now().Unix() / (24 * 60 * 60))
	}
	if os.Getenv("BATON_EXPLORE") == "all" {
		limit = max(limit, all)
	}
	every := max(1, (all+limit-1)/limit)
	// In no step with the loops that make the scripts: those have few rounds.
	for every > 1 && (every%2 == 0 || every%3 == 0 || every%5 == 0 || every%7 == 0) {
		every++
	}
	ran, n := 0, 0
	for s := range scripts {
		if n++; (first+n)%every != 0 {
			continue
		}
		ran++
		if f(t, s); t.Failed() {
			break
		}
	}
	if ran == 0 {
		t.Error("no script ran")
	}
	t.Logf("%d of %d scripts ran", ran, all)
}
