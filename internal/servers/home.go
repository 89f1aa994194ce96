package servers

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// ErrBusy says that another live process owns the Home.
var ErrBusy = errors.New("in use by another process")

// Home is a directory with the state of servers: data, logs, passwords. One
// process owns it at a time, from opening to Close.
//
// Servers refuse to run as root, and their own users cannot enter /root. So
// for root a Home lives in /var/lib/baton, linked from the clone; for anybody
// else it lives in the clone's .baton itself.
type Home struct {
	path string
	link string // what leads to path from the clone, or ""
	lock *os.File
	temp bool

	mu sync.Mutex // guards secrets.json
}

// The clone's own folder for what is not committed.
const dotDir = ".baton"

// ClonePath is the directory at or above dir that holds go.mod: the clone that
// homes belong to.
func ClonePath(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return filepath.EvalSymlinks(d)
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.mod at or above %s: not in a clone of Baton", dir)
		}
	}
}

// OpenHome opens the lasting Home called name of the clone, making it if need
// be. What a killed owner left running in it is ended first.
//
// The error is ErrBusy if another process owns it.
func OpenHome(clone, name string) (*Home, error) {
	link := filepath.Join(clone, dotDir, name)
	path := filepath.Join(homes(clone), name)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return nil, err
	}
	if link != path {
		if target, err := os.Readlink(link); err != nil || target != path {
			if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s was made by an ordinary user, and root keeps its data in %s: go on as that user, or remove it: %w", link, path, err)
			}
			if err := os.Symlink(path, link); err != nil {
				return nil, err
			}
		}
	}
	h, err := open(path, false)
	if err == nil && link != path {
		h.link = link
	}
	return h, err
}

// TempHome makes a Home for a short time: Close removes it. It also removes
// those that killed processes left behind in this clone.
func TempHome(clone string) (*Home, error) {
	Sweep(clone)
	id := randomHex(4)
	// Locked before it gets the name that Sweep of another process looks for.
	making, path := filepath.Join(homes(clone), "new-"+id), filepath.Join(homes(clone), tempPrefix+id)
	h, err := open(making, true)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(making, path); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.path = path
	return h, nil
}

const tempPrefix = "temp-"

func homes(clone string) string {
	if os.Geteuid() != 0 {
		return filepath.Join(clone, dotDir)
	}
	sum := sha256.Sum256([]byte(clone))
	return filepath.Join("/var/lib/baton", filepath.Base(clone)+"-"+hex.EncodeToString(sum[:4]))
}

func open(path string, temp bool) (*Home, error) {
	// The server's own user has to get through to its folder in here, and no
	// further: nothing is readable but what belongs to it.
	if err := os.MkdirAll(path, 0o711); err != nil {
		return nil, err
	}
	return own(path, os.O_CREATE, temp)
}

// own takes the lock of a Home and ends what a killed owner left running.
func own(path string, create int, temp bool) (*Home, error) {
	lock, err := takeLock(filepath.Join(path, "lock"), create)
	if err != nil {
		return nil, err
	}
	h := &Home{path: path, lock: lock, temp: temp}
	if err := h.endLeftovers(context.Background()); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return h, nil
}

// takeLock takes a lock that the kernel gives back when we die, however.
func takeLock(path string, create int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|create, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		// Its owner of a moment ago may have removed the file that we opened.
		var ours, theirs fs.FileInfo
		if ours, err = f.Stat(); err == nil {
			if theirs, err = os.Stat(path); err == nil && os.SameFile(ours, theirs) {
				return f, nil
			}
		}
		err = fmt.Errorf("lock %s: it was removed: %w", path, errors.Join(err, ErrBusy))
	} else if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrBusy
	}
	_ = f.Close() // nothing was written
	return nil, err
}

// Sweep removes temporary homes of the clone whose owners died without closing
// them, and ends what still runs in them. It is a favour: what it cannot remove
// stays for the next time.
func Sweep(clone string) {
	left, _ := filepath.Glob(filepath.Join(homes(clone), tempPrefix+"*")) // the only error is a bad pattern
	for _, path := range left {
		// Without O_CREATE: one that is being removed must not be revived.
		if h, err := own(path, 0, true); err == nil {
			_ = h.Close()
		}
	}
}

// Path is the directory itself.
func (h *Home) Path() string { return h.path }

// Close gives the Home back, for others to open. A temporary one is removed.
// Servers in it have to be stopped before.
func (h *Home) Close() error {
	if h.temp {
		return h.Remove()
	}
	return h.lock.Close()
}

// Remove gives the Home back and removes it with everything in it.
func (h *Home) Remove() error {
	// Removed before the lock is given back, so that nobody opens half of it.
	err := os.RemoveAll(h.path)
	if h.link != "" {
		err = errors.Join(err, os.Remove(h.link))
	}
	return errors.Join(err, h.lock.Close())
}

// Secret returns a random password that the Home keeps under this name.
func (h *Home) Secret(name string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	path := filepath.Join(h.path, "secrets.json")
	secrets := map[string]string{}
	switch data, err := os.ReadFile(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", err
	default:
		if err := json.Unmarshal(data, &secrets); err != nil {
			return "", fmt.Errorf("read %s: %w", path, err)
		}
	}
	if s, ok := secrets[name]; ok {
		return s, nil
	}
	secrets[name] = strings.ToLower(rand.Text())
	data, err := json.MarshalIndent(secrets, "", "  ")
	if err != nil {
		return "", err
	}
	// Through a rename: a half written file would lose every password.
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return "", err
	}
	return secrets[name], os.Rename(path+".new", path)
}

// mark is an environment variable that every process of a Home carries, so
// that leftovers can be told from everything else on the machine.
func (h *Home) mark() string { return "BATON_HOME=" + h.path }

// Env is what a child process should have in its environment so that it is
// ended with the Home's servers if we are killed.
func (h *Home) Env() []string { return []string{h.mark()} }

// endLeftovers ends what an owner that was killed left: processes that carry
// our mark, and containers with our label.
func (h *Home) endLeftovers(ctx context.Context) error {
	if err := endMarked(ctx, h.mark()); err != nil {
		return fmt.Errorf("end what runs in %s: %w", h.path, err)
	}
	return removeContainers(ctx, h)
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
