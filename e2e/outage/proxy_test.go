package outage

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// countingProxy stands in front of a server and counts connections to it.
type countingProxy struct {
	addr  string
	count atomic.Int64
}

// newCountingProxy makes one in front of the server that address is of. It ends
// with the test.
func newCountingProxy(t *testing.T, address string) *countingProxy {
	t.Helper()
	target := parse(t, address)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &countingProxy{addr: ln.Addr().String()}
	var working sync.WaitGroup
	working.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return // closed
			}
			p.count.Add(1)
			working.Go(func() { join(client, target.Host) })
		}
	})
	// Before this the processes have ended, and their connections with them.
	t.Cleanup(func() {
		_ = ln.Close()
		working.Wait()
	})
	return p
}

// join passes on what either side sends until one of them is done.
func join(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return // the client is cut off, as the server would have done
	}
	defer server.Close()
	var copying sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		copying.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // its end is the connection's
			_ = way[0].Close()
		})
	}
	copying.Wait()
}

// through is address by way of the proxy.
func (p *countingProxy) through(t *testing.T, address string) string {
	t.Helper()
	u := parse(t, address)
	u.Host = p.addr
	return u.String()
}
