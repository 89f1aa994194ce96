package steps

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// A stream outlives the server's write timeout, so each write has a deadline of
// its own: a client that reads nothing is cut after it. The heartbeat finds
// clients that are gone.
const (
	writeTimeout = 10 * time.Second
	heartbeat    = 15 * time.Second
)

// Handler streams the steps as server-sent events: first what the ring holds
// after the Last-Event-ID, then what comes. A step is a message whose id is its
// number and whose data is a [Step] as JSON. A client that is slower than the
// ring turns over misses steps, and is told how many by an event "dropped" with
// the data {"dropped": n}.
//
// The stream ends with the request, or with [Ring.Close].
func (r *Ring) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// What is no number of ours is as good as none: the client gets everything.
		after, _ := strconv.ParseInt(req.Header.Get("Last-Event-ID"), 10, 64)

		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusOK)
		s := stream{out: bufio.NewWriter(w), control: http.NewResponseController(w)}
		beat := time.NewTicker(heartbeat)
		defer beat.Stop()

		buf := make([]Step, 256)
		for {
			n, dropped, changed, closed := r.read(after, buf)
			if closed {
				return
			}
			if n > 0 {
				if s.steps(buf[:n], dropped) != nil {
					return
				}
				after = buf[n-1].Seq
				continue
			}
			// Everything is said: now it has to leave.
			if s.flush() != nil {
				return
			}
			select {
			case <-changed:
			case <-beat.C:
				s.out.WriteString(":\n\n") // an error of out stays until the next flush
			case <-req.Context().Done():
				return
			}
		}
	})
}

// stream writes server-sent events. Its errors mean that the client is gone.
type stream struct {
	out     *bufio.Writer
	control *http.ResponseController
}

func (s stream) steps(steps []Step, dropped int64) error {
	if dropped > 0 {
		fmt.Fprintf(s.out, "event: dropped\ndata: {\"dropped\":%d}\n\n", dropped)
	}
	for _, step := range steps {
		data, err := json.Marshal(step)
		if err != nil {
			return fmt.Errorf("step %d: %w", step.Seq, err)
		}
		fmt.Fprintf(s.out, "id: %d\ndata: %s\n\n", step.Seq, data)
	}
	return s.flush()
}

func (s stream) flush() error {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("write deadline: %w", err)
	}
	if err := s.out.Flush(); err != nil {
		return err
	}
	return s.control.Flush()
}
