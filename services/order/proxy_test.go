package order

import (
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between the service and PostgreSQL and can swallow what either
// says, without closing anything.
type proxy struct {
	url         string // the database by way of the proxy
	serverMuted atomic.Bool
	clientMuted atomic.Bool
	turns       atomic.Int64 // times that the client spoke after the server
	close       func()       // ends all connections
}

func newProxy(t *testing.T, databaseURL string) *proxy {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.Host = ln.Addr().String()
	p := &proxy{url: u.String()}

	var mu sync.Mutex
	var conns []net.Conn
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, client, upstream)
			mu.Unlock()
			var clientSpoke atomic.Bool
			all.Go(func() {
				pipe(upstream, client, func() bool {
					if !clientSpoke.Swap(true) {
						p.turns.Add(1)
					}
					return !p.clientMuted.Load()
				})
			})
			all.Go(func() {
				pipe(client, upstream, func() bool { clientSpoke.Store(false); return !p.serverMuted.Load() })
			})
		}
	})
	p.close = sync.OnceFunc(func() {
		ln.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	t.Cleanup(p.close)
	return p
}

func (p *proxy) muteServer() { p.serverMuted.Store(true) }
func (p *proxy) muteClient() { p.clientMuted.Store(true) }

// pipe copies until either end closes; what pass refuses is swallowed.
func pipe(to, from net.Conn, pass func() bool) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && pass() {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
