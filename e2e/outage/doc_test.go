// Package outage breaks what the services stand on, while orders come in: it
// restarts, stops and kills the servers, closes connections, takes away rights,
// exchanges and bindings, fills the disk and the memory. After each the services
// must have mended themselves, with nobody restarting them, and every accepted
// order must have been handled exactly once.
//
// What concerns one vhost or one database is done on the servers that all tests
// share; what takes a whole server down has one of its own. BATON_NIGHTLY=1 makes
// the outages as long as people fear them; otherwise they are as short as they
// may be and still be one.
package outage

import (
	"flag"
	"os"
	"testing"
	"time"

	"example.com/baton/internal/system"
)

func TestMain(m *testing.M) {
	// The tests wait most of the time, more of them at once than there are
	// processors do no harm. -parallel on the command line comes later and wins.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(system.Main(m))
}

// nightly says that there is time.
var nightly = os.Getenv("BATON_NIGHTLY") == "1"

// lasts is how long an outage is.
func lasts(usually, atNight time.Duration) time.Duration {
	if nightly {
		return atNight
	}
	return usually
}
