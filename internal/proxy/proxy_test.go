package proxy_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/baton/internal/proxy"
	"example.com/baton/internal/testenv"
)

// echo is a server that answers each line with itself, and keeps what it heard.
type echo struct {
	addr string

	mu    sync.Mutex
	heard []string
	ended int // connections that said goodbye
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{addr: l.Addr().String()}
	var working sync.WaitGroup
	working.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			working.Go(func() { e.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); working.Wait() })
	return e
}

func (e *echo) serve(c net.Conn) {
	defer c.Close()
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		e.mu.Lock()
		e.heard = append(e.heard, lines.Text())
		e.mu.Unlock()
		_, _ = io.WriteString(c, lines.Text()+"\n") // a client that left
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended++
}

func (e *echo) hears(t *testing.T, want string) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, "the server hears "+want, func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		return testenv.Want(strings.Join(e.heard, " "), want)
	})
}

func setup(t *testing.T) (*echo, *proxy.Proxy) {
	t.Helper()
	e := newEcho(t)
	p, err := proxy.New(e.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, p
}

// client is a connection through the proxy.
type client struct {
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, p *proxy.Proxy) *client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{c, bufio.NewReader(c)}
}

func (c *client) says(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (c *client) hears(t *testing.T, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if got, err := c.lines.ReadString('\n'); err != nil || got != want+"\n" {
		t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

func (c *client) hearsNothing(t *testing.T) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if got, err := c.lines.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %q, %v; want nothing", got, err)
	}
}

func TestFreezeToServer(t *testing.T) {
	t.Parallel()
	e, p := setup(t)
	c := dial(t, p)
	c.says(t, "one")
	c.hears(t, "one")
	p.Freeze(proxy.ToServer)
	c.says(t, "two")
	c.hearsNothing(t)
	e.hears(t, "one")
	p.Thaw(proxy.ToClient) // the other one
	c.hearsNothing(t)
	p.Thaw(proxy.ToServer)
	c.hears(t, "two")
	if n := p.Turns(); n != 2 {
		t.Errorf("%d turns, want 2", n)
	}
}

func TestFreezeToClient(t *testing.T) {
	t.Parallel()
	e, p := setup(t)
	c := dial(t, p)
	p.Freeze(proxy.ToClient)
	c.says(t, "one")
	e.hears(t, "one")
	c.hearsNothing(t)
	other := dial(t, p) // a new connection fares no better
	other.says(t, "two")
	e.hears(t, "one two")
	other.hearsNothing(t)
	p.Thaw(proxy.ToServer | proxy.ToClient)
	c.hears(t, "one")
	other.hears(t, "two")
	if n := p.Accepted(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// What a client said before it gave up arrives late, and so does its goodbye.
func TestLateArrival(t *testing.T) {
	t.Parallel()
	e, p := setup(t)
	c := dial(t, p)
	p.Freeze(proxy.ToServer)
	c.says(t, "one")
	_ = c.Close()
	e.hears(t, "")
	p.Thaw(proxy.ToServer)
	e.hears(t, "one")
	testenv.Eventually(t, 10*time.Second, "the server hears the goodbye", func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		return testenv.Want(e.ended, 1)
	})
}

func TestLose(t *testing.T) {
	t.Parallel()
	e, p := setup(t)
	c := dial(t, p)
	c.says(t, "one")
	c.hears(t, "one")
	if n := p.Lose(); n != 1 {
		t.Errorf("%d connections lost, want 1", n)
	}
	c.says(t, "two")
	c.hearsNothing(t)
	other := dial(t, p)
	other.says(t, "three")
	other.hears(t, "three")
	e.hears(t, "one three")
	_ = c.Close()
	p.Cut()
	e.hears(t, "one three")
}

func TestCut(t *testing.T) {
	t.Parallel()
	e, p := setup(t)
	c := dial(t, p)
	c.says(t, "one")
	c.hears(t, "one")
	p.Freeze(proxy.ToServer)
	c.says(t, "two")
	if n := p.Cut(); n != 1 {
		t.Errorf("%d connections cut, want 1", n)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if got, err := c.lines.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the cut: %q, %v", got, err)
	}
	p.Thaw(proxy.ToServer)
	again := dial(t, p)
	again.says(t, "three")
	again.hears(t, "three")
	e.hears(t, "one three") // what was held back is lost
}

func TestDelay(t *testing.T) {
	t.Parallel()
	_, p := setup(t)
	c := dial(t, p)
	const delay = 50 * time.Millisecond
	p.Delay(delay)
	begin := time.Now()
	c.says(t, "one")
	c.hears(t, "one")
	if took := time.Since(begin); took < 2*delay { // there and back
		t.Errorf("there and back in %s, want %s or more", took, 2*delay)
	}
}

// A server that is not there looks like one that hangs up.
func TestServerAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	p, err := proxy.New(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c := dial(t, p)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.lines.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v, want one of a closed connection", err)
	}
}

// Nothing runs any more once Close has returned, although a client stays and
// everything is frozen.
func TestClose(t *testing.T) { // not parallel: it counts goroutines
	e := newEcho(t)
	p, err := proxy.New(e.addr)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, p)
	c.says(t, "one")
	c.hears(t, "one")
	p.Freeze(proxy.ToServer | proxy.ToClient)
	c.says(t, "two")
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if strings.Contains(string(stacks), "proxy.(*Proxy)") {
		t.Errorf("a goroutine of the proxy runs:\n%s", stacks)
	}
}
