// Package e2e runs the real programs and kills them at every step of the flow.
// docs/guarantees.md says what each test shows.
package e2e

import (
	"os"
	"testing"

	"example.com/baton/internal/system"
)

func TestMain(m *testing.M) { os.Exit(system.Main(m)) }
