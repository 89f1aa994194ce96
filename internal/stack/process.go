package stack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/servers"
)

// Process is a process of a service. It may be killed, frozen and restarted by
// the methods of its Server.
type Process struct {
	*servers.Server // nil before Start

	Name    string // "order-2", or "order" if it is the only one
	Service Service
	Addr    string // where it listens
	// DatabaseAddr and BrokerAddr are host and port by which it reaches the
	// servers: their own, unless changed before Start to those of a proxy.
	DatabaseAddr, BrokerAddr string
	// Env are settings, "NAME=value", for this process.
	Env []string
	// LogFile is what all its lives have written.
	LogFile string
}

// URL is the address of its API.
func (p *Process) URL() string { return "http://" + p.Addr }

// Do sends a request and returns the body of the answer. A status of 300 or more
// is an error.
func (p *Process) Do(ctx context.Context, method, path string, in any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.URL()+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // no idle connection, and no goroutine, stays behind
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		const most = 1024
		err = fmt.Errorf("%s %s%s: %s %s", method, p.URL(), path, resp.Status, answer[:min(len(answer), most)])
	}
	return answer, err
}

// ready is nil once the process does its work.
func (p *Process) ready(ctx context.Context) error {
	_, err := p.Do(ctx, http.MethodGet, "/readyz", nil)
	return err
}

// Healthy is nil if nothing is amiss: ready, and not degraded.
func (p *Process) Healthy(ctx context.Context) error {
	body, err := p.Do(ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return err
	}
	var answer struct{ Status string }
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	if answer.Status != "ok" {
		return fmt.Errorf("%s: %s", p.Name, body)
	}
	return nil
}

// Metrics reads /metrics: numbers by their names with labels, as they are shown
// there. Counters start anew with each life.
func (p *Process) Metrics(ctx context.Context) (map[string]float64, error) {
	body, err := p.Do(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	found := make(map[string]float64)
	for line := range strings.Lines(string(body)) {
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64); err == nil {
			found[line[:i]] = v
		}
	}
	return found, nil
}

// Arm arms a fault. The process has to have BATON_FAULTS=1 in its environment.
func (p *Process) Arm(ctx context.Context, f faults.Fault) (*Armed, error) {
	info, err := os.Stat(p.LogFile)
	if err != nil {
		return nil, err
	}
	if _, err := p.Do(ctx, http.MethodPost, "/faults", f); err != nil {
		return nil, fmt.Errorf("arm %s at %s: %w", f.Action, f.Step, err)
	}
	return &Armed{p.LogFile, info.Size(), f}, nil
}

// Disarm disarms every fault and sets the clock right.
func (p *Process) Disarm(ctx context.Context) error {
	_, err := p.Do(ctx, http.MethodDelete, "/faults", nil)
	return err
}

// Armed is a fault that was armed.
type Armed struct {
	logFile string
	from    int64
	fault   faults.Fault
}

// Happened reports whether a crash or a stop has happened. The process tells by
// the last line before it, since afterwards it cannot be asked.
func (a *Armed) Happened() (bool, error) {
	log, err := os.Open(a.logFile)
	if err != nil {
		return false, err
	}
	defer log.Close()
	if _, err := log.Seek(a.from, io.SeekStart); err != nil {
		return false, err
	}
	last := []byte(fmt.Sprintf("fault: %s at %s ", a.fault.Action, a.fault.Step))
	for r := bufio.NewReader(log); ; {
		line, err := r.ReadSlice('\n')
		if bytes.HasPrefix(line, last) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return false, err
		}
	}
}
