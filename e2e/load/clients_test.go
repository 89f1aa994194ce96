package load

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/baton/internal/system"
)

// B78: clients that drip bytes, 300 in their headers and 300 in their bodies,
// are cut off at the limits. Nobody notices them meanwhile, and nothing is left
// of them.
func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{})
	order, inventory := s.Start()
	wantAccepted(t, s, 50) // opens what is opened once
	atOrder, err := levelOf(order)
	if err != nil {
		t.Fatal(err)
	}
	atInventory, err := levelOf(inventory)
	if err != nil {
		t.Fatal(err)
	}

	const (
		n                 = 300
		readHeaderTimeout = 5 * time.Second // of both services
		readTimeout       = 10 * time.Second
	)
	var slow, connected sync.WaitGroup
	for range n {
		for _, d := range []dripper{
			{to: order, begin: "POST /orders HTTP/1.1\r\nHost: x\r\nX-Drip: ", limit: readHeaderTimeout},
			{to: inventory, begin: "GET /stock HTTP/1.1\r\nHost: x\r\nX-Drip: ", limit: readHeaderTimeout},
			{
				to: order, limit: readTimeout, answer: "HTTP/1.1 408",
				begin: "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n",
			},
		} {
			connected.Add(1)
			slow.Go(func() { d.drip(t, connected.Done) })
		}
	}
	connected.Wait()
	held, err := levelOf(order)
	if err != nil {
		t.Fatal(err)
	}
	if held.files < atOrder.files+2*n {
		t.Errorf("%.0f open files with %d slow clients, before %.0f: they are not there", held.files, 2*n, atOrder.files)
	}
	start := time.Now()
	wantAccepted(t, s, 50)
	if took := time.Since(start); took > readHeaderTimeout {
		t.Errorf("50 normal requests took %s", took)
	}
	slow.Wait()
	wantBackAt(t, order, atOrder)
	wantBackAt(t, inventory, atInventory)
	s.Settled()
	s.Exact()
}

// dripper is a client that sends a byte every two seconds.
type dripper struct {
	to     *system.Process
	begin  string        // sent at once
	limit  time.Duration // after which it is cut off
	answer string        // the beginning of what it is told before
}

func (d dripper) drip(t *testing.T, connected func()) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.to.URL(), "http://"))
	if err == nil {
		defer conn.Close()
		_, err = io.WriteString(conn, d.begin)
	}
	start := time.Now()
	connected()
	if err != nil {
		t.Error(err)
		return
	}
	ended := make(chan string, 1)
	go func() {
		answer, _ := io.ReadAll(conn) // until it is cut, in whatever way
		ended <- string(answer)
	}()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_, _ = io.WriteString(conn, "a") // it may be cut already
		case answer := <-ended:
			if took := time.Since(start); took < d.limit-time.Second || took > d.limit+10*time.Second {
				t.Errorf("%s: cut off after %s, want %s", d.to.Name, took, d.limit)
			}
			if !strings.HasPrefix(answer, d.answer) || d.answer == "" && answer != "" {
				t.Errorf("%s: answered %q, want %q", d.to.Name, answer, d.answer)
			}
			return
		}
	}
}

// B76: bodies of 50 MiB, with a length and in chunks, twenty of each at once.
// The answer is there long before their end, nobody reads on, and the process
// does not grow.
func TestHugeBodies(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Plain: true})
	order, _ := s.Start()
	wantAccepted(t, s, 50)
	peakMemory(t, order)
	before := peakMemory(t, order) // of this moment

	const (
		size  = 50 << 20
		taken = size / 4 // the sockets on both sides hold some MiB
	)
	blanks := strings.Repeat(" ", 16<<10)
	var all sync.WaitGroup
	for range 20 {
		for framing, unit := range map[string]string{
			fmt.Sprintf("Content-Length: %d", size): blanks,
			"Transfer-Encoding: chunked":            "4000\r\n" + blanks + "\r\n",
		} {
			all.Go(func() {
				answer, sent, err := sendHuge(order, framing, unit, size)
				if err != nil || !strings.HasPrefix(answer, "HTTP/1.1 413") || sent > taken {
					t.Errorf("%s: answered %q (%v) and taken %d bytes, want 413 after at most %d", framing, answer, err, sent, taken)
				}
			})
		}
	}
	all.Wait()
	const most = 20 << 20
	after := peakMemory(t, order)
	t.Logf("%d KiB more memory at the peak", (after-before)>>10)
	if after > before+most {
		t.Errorf("%d KiB of memory at the peak, before %d: more than %d were taken", after>>10, before>>10, most>>10)
	}
	wantAccepted(t, s, 1)
	s.Settled()
	s.Exact()
}

// sendHuge sends size bytes of a body as far as they are taken, and returns the
// first line of the answer and how many were.
func sendHuge(p *system.Process, framing, unit string, size int) (answer string, taken int, err error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.URL(), "http://"))
	if err != nil {
		return "", 0, err
	}
	sent := make(chan int)
	go func() {
		total := 0
		_, err := io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+framing+"\r\n\r\n")
		for err == nil && total < size {
			var n int
			n, err = io.WriteString(conn, unit)
			total += n
		}
		sent <- total
	}()
	answer, err = bufio.NewReader(conn).ReadString('\n')
	taken = <-sent // the service closes, since it does not read on
	return answer, taken, errors.Join(err, conn.Close())
}

// peakMemory is the most memory that a process has had since the last call.
func peakMemory(t *testing.T, p *system.Process) int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", p.PID())
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells the peak of a process's memory, in /proc")
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		t.Fatal(err)
	}
	forgetPeak := []byte("5")
	if err := os.WriteFile(dir+"clear_refs", forgetPeak, 0); err != nil {
		t.Fatal(err)
	}
	var kib int
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscanf(peak, "%d kB", &kib); err != nil {
		t.Fatalf("VmHWM in the status of a process: %v", err)
	}
	return kib << 10
}
