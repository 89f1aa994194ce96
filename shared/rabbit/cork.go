package rabbit

import (
	"net"
	"sync"
)

// corkedConn is a connection that can hold back what is written to it. The
// client library writes each message to the socket by itself; corked, a batch of
// them leaves in one system call, and the broker reads it in one.
type corkedConn struct {
	net.Conn

	mu     sync.Mutex
	corked bool
	held   []byte
}

// corkedMost bounds what is held back: about what a socket takes at once.
const corkedMost = 64 << 10

func (c *corkedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked {
		return c.Conn.Write(p)
	}
	c.held = append(c.held, p...)
	if len(c.held) >= corkedMost {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// cork begins to hold back.
func (c *corkedConn) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = true
}

// uncork lets go what was held back, and everything from now on.
func (c *corkedConn) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = false
	return c.flush()
}

// push lets go what was held back so far.
func (c *corkedConn) push() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flush()
}

func (c *corkedConn) flush() error {
	if len(c.held) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.held)
	c.held = c.held[:0]
	return err
}
