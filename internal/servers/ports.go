package servers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
)

// FreePort finds a TCP port on 127.0.0.1 that a server can keep across
// restarts.
//
// It avoids the range that the kernel gives to outgoing connections: while a
// server is down, a client that keeps dialling could be given that very port,
// and even connect to itself.
func FreePort() (int, error) {
	const low = 20000
	high := 32768
	if data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		var first, last int
		if _, err := fmt.Sscan(string(data), &first, &last); err == nil && first > low+1000 {
			high = first
		}
	}
	for range 200 {
		port := low + rand.IntN(high-low)
		if reserve(port) && free(port) {
			return port, nil
		}
	}
	return 0, errors.New("found no free TCP port on 127.0.0.1")
}

// handedOut keeps this process from giving one port to two servers before
// either of them listens.
var handedOut struct {
	sync.Mutex
	ports map[int]bool
}

func reserve(port int) bool {
	handedOut.Lock()
	defer handedOut.Unlock()
	if handedOut.ports[port] {
		return false
	}
	if handedOut.ports == nil {
		handedOut.ports = map[int]bool{}
	}
	handedOut.ports[port] = true
	return true
}

func free(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
