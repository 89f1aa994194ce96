// Package proxy is a network that can be made to fail: a TCP proxy that holds
// back what either side says without closing anything, cuts connections, and
// delays.
//
//	p, err := proxy.New("127.0.0.1:5672")
//	defer p.Close()
//	// clients use p.Addr()
//	p.Freeze(proxy.ToClient) // the server hears everything, and nobody hears it
package proxy

import (
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Direction is which way bytes go. Both are ToServer|ToClient.
type Direction int

// The directions.
const (
	ToServer Direction = 1 << iota
	ToClient
)

// Proxy passes bytes between its clients and one server. Its methods may be
// called by any goroutine.
type Proxy struct {
	listener net.Listener
	server   string
	accepted atomic.Int64
	turns    atomic.Int64
	working  sync.WaitGroup

	mu     sync.Mutex
	pairs  map[*pair]struct{}
	gates  map[Direction]chan struct{} // closed while bytes may pass
	delay  time.Duration
	closed bool
}

// pair is one connection through the proxy.
type pair struct {
	client, server net.Conn
	over           chan struct{} // closed when it is cut
	lost           atomic.Bool
	cut            func()
	serverSpoke    atomic.Bool // last, that is
}

// New listens on a free port of 127.0.0.1, for connections to a server's host
// and port. Close ends it.
func New(server string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		listener: listener, server: server, pairs: make(map[*pair]struct{}),
		gates: map[Direction]chan struct{}{ToServer: opened(), ToClient: opened()},
	}
	p.working.Go(p.accept)
	return p, nil
}

func opened() chan struct{} {
	gate := make(chan struct{})
	close(gate)
	return gate
}

// Addr is host and port where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Through is an address, such as a database URL, with the proxy in place of its
// host.
func (p *Proxy) Through(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err.(*url.Error).Err // the whole would show the password
	}
	u.Host = p.Addr()
	return u.String(), nil
}

// Freeze holds back what is said in a direction, on the connections that there
// are and on new ones. Nobody is told: who speaks fills the buffers on the way,
// who listens hears nothing, and a goodbye is held back like any word.
func (p *Proxy) Freeze(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for way, gate := range p.gates {
		select {
		case <-gate:
			if d&way != 0 {
				p.gates[way] = make(chan struct{})
			}
		default: // frozen already
		}
	}
}

// Thaw lets bytes pass again in a direction, first those that were held back.
func (p *Proxy) Thaw(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for way, gate := range p.gates {
		select {
		case <-gate:
		default:
			if d&way != 0 {
				close(gate)
			}
		}
	}
}

// Delay makes whatever passes wait for d first, in either direction. 0 ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Lose makes the connections that there are half-open, as when a cable is pulled
// or an address moves: nothing passes on them any more, no goodbye either, and
// nobody is told, until Cut or Close. New ones are as usual. It returns how many
// were lost.
func (p *Proxy) Lose() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		pair.lost.Store(true)
	}
	return len(p.pairs)
}

// Cut closes every connection at once, what is held back on it included, and
// returns how many there were. New ones may be made.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		pair.cut()
	}
	return len(p.pairs)
}

// Accepted is how many connections were made through the proxy so far.
func (p *Proxy) Accepted() int64 { return p.accepted.Load() }

// Turns is how often a client has spoken after the server had, or first of all:
// for a protocol of questions and answers, its round trips.
func (p *Proxy) Turns() int64 { return p.turns.Load() }

// Close ends the proxy and all its connections, and returns when nothing of it
// runs any more.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.Cut()
	p.working.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.accepted.Add(1)
		p.working.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	server, err := net.DialTimeout("tcp", p.server, 5*time.Second)
	if err != nil {
		_ = client.Close() // as the server would have refused it
		return
	}
	c := &pair{client: client, server: server, over: make(chan struct{})}
	c.serverSpoke.Store(true)
	c.cut = sync.OnceFunc(func() {
		close(c.over)
		_ = client.Close()
		_ = server.Close()
	})
	p.mu.Lock()
	p.pairs[c] = struct{}{}
	if p.closed {
		c.cut()
	}
	p.mu.Unlock()

	var copying sync.WaitGroup
	copying.Go(func() { p.copy(c, server, client, ToServer) })
	copying.Go(func() { p.copy(c, client, server, ToClient) })
	copying.Wait()
	c.cut()
	p.mu.Lock()
	delete(p.pairs, c)
	p.mu.Unlock()
}

// copy passes bytes on in one direction until either side is done. The other
// direction goes on: what was held back there arrives late, even from a client
// that has left.
func (p *Proxy) copy(c *pair, to, from net.Conn, way Direction) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && c.serverSpoke.Swap(way == ToClient) && way == ToServer {
			p.turns.Add(1)
		}
		if !p.pass(c, way) {
			return
		}
		if _, writeErr := to.Write(buf[:n]); writeErr != nil {
			return // from is told by the other direction
		}
		if err != nil {
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
	}
}

// pass waits until bytes may go on. It is false if the connection was cut.
func (p *Proxy) pass(c *pair, way Direction) bool {
	p.mu.Lock()
	gate, delay := p.gates[way], p.delay
	p.mu.Unlock()
	if delay > 0 {
		t := time.NewTimer(delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.over:
			return false
		}
	}
	select {
	case <-gate:
	case <-c.over:
		return false
	}
	if c.lost.Load() {
		<-c.over
		return false
	}
	return true
}
