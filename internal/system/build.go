package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"example.com/baton/internal/wrongclock"
)

// Main runs the tests of a package, removes what [New] has built for them, and
// returns the exit code. Every package that uses New needs it:
//
//	func TestMain(m *testing.M) { os.Exit(system.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	for _, b := range []*build{&ordinary, &plain, &wrongClocks} {
		if b.dir == "" {
			continue
		}
		if err := os.RemoveAll(b.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return code
}

// The services.
const (
	orderProgram     = "order"
	inventoryProgram = "inventory"
)

// build is the services, built once for all tests of a package.
type build struct {
	flags func(dir string) ([]string, error) // dir is for files that the build needs
	once  sync.Once
	dir   string
	err   error
}

var (
	ordinary    = build{flags: func(string) ([]string, error) { return []string{"-race"}, nil }}
	plain       = build{flags: func(string) ([]string, error) { return nil, nil }}
	wrongClocks = build{flags: func(dir string) ([]string, error) {
		flags, err := wrongclock.Flags(dir)
		return append(flags, "-race"), err
	}}
)

// program is the path of a service's binary.
func (b *build) program(name string) (string, error) {
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "baton-system-"); b.err != nil {
			return
		}
		var args []string
		if args, b.err = b.flags(b.dir); b.err != nil {
			return
		}
		args = append([]string{"build", "-o", b.dir + string(filepath.Separator)}, args...)
		cmd := exec.Command("go", append(args, "example.com/baton/cmd/"+orderProgram, "example.com/baton/cmd/"+inventoryProgram)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	})
	return filepath.Join(b.dir, name), b.err
}
