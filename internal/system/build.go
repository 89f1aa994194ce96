package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Main runs the tests of a package, removes what [New] has built for them, and
// returns the exit code. Every package that uses New needs it:
//
//	func TestMain(m *testing.M) { os.Exit(system.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	if programs.dir != "" {
		if err := os.RemoveAll(programs.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return code
}

// The services, built with the race detector, once for all tests of a package.
const (
	orderProgram     = "order"
	inventoryProgram = "inventory"
)

var programs struct {
	once sync.Once
	dir  string
	err  error
}

// program is the path of a service's binary.
func program(name string) (string, error) {
	programs.once.Do(func() {
		programs.dir, programs.err = os.MkdirTemp("", "baton-system-")
		if programs.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-race", "-o", programs.dir+string(filepath.Separator),
			"example.com/baton/cmd/"+orderProgram, "example.com/baton/cmd/"+inventoryProgram)
		if out, err := cmd.CombinedOutput(); err != nil {
			programs.err = fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	})
	return filepath.Join(programs.dir, name), programs.err
}
