package testenv

import (
	"testing"

	"example.com/baton/internal/proxy"
)

// Proxy puts a proxy in front of the server that an address is of, and returns
// the address by way of the proxy. It ends with the test, if not before.
func Proxy(t testing.TB, address string) (p *proxy.Proxy, through string) {
	t.Helper()
	p, err := proxy.New(parse(t, address).Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // closing it twice is no problem
	if through, err = p.Through(address); err != nil {
		t.Fatal(err)
	}
	return p, through
}
