package rabbit

import (
	"bytes"
	"errors"
	"net"
	"testing"
)

// recorded is a connection that keeps each write.
type recorded struct {
	net.Conn
	writes [][]byte
	err    error
}

func (w *recorded) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	w.writes = append(w.writes, bytes.Clone(p))
	return len(p), nil
}

// What is written while a connection is corked leaves at once when it is uncorked
// or pushed, or when there is as much as a socket takes, and in the same order.
func TestCork(t *testing.T) {
	t.Parallel()
	w := &recorded{}
	c := &corkedConn{Conn: w}
	write := func(p []byte) {
		t.Helper()
		if n, err := c.Write(p); n != len(p) || err != nil {
			t.Fatalf("wrote %d of %d bytes: %v", n, len(p), err)
		}
	}
	left := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, p := range w.writes {
			got = append(got, string(p))
		}
		w.writes = nil
		if len(got) != len(want) {
			t.Fatalf("%s: %d writes, want %d", what, len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: write %d has %d bytes, want %d", what, i, len(got[i]), len(want[i]))
			}
		}
	}
	write([]byte("a"))
	left("not corked", "a")
	c.cork()
	write([]byte("b"))
	write([]byte("c"))
	left("corked")
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	left("pushed", "bc")
	write([]byte("d"))
	if err := c.uncork(); err != nil {
		t.Fatal(err)
	}
	left("uncorked", "d")
	write([]byte("e"))
	left("after it", "e")

	c.cork()
	most := string(bytes.Repeat([]byte("x"), corkedMost))
	write([]byte(most[1:]))
	left("nearly as much as it holds")
	write([]byte("x"))
	left("as much as it holds", most)
	write([]byte("y"))
	w.err = errors.New("reset")
	if err := c.uncork(); !errors.Is(err, w.err) {
		t.Errorf("uncorked a connection that is gone: %v", err)
	}
	if _, err := c.Write([]byte("z")); !errors.Is(err, w.err) {
		t.Errorf("wrote to a connection that is gone: %v", err)
	}
}
