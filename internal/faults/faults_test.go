package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/baton/internal/faults"
	"example.com/baton/shared/outbox"
)

func newSet() *faults.Set { return faults.New(slog.New(slog.DiscardHandler)) }

// call sends a request from the given peer straight to the handler.
func call(set *faults.Set, peer, method, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/faults", strings.NewReader(body))
	r.RemoteAddr = peer
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	set.Handler().ServeHTTP(w, r)
	return w
}

const local = "127.0.0.1:40000"

func arm(t *testing.T, set *faults.Set, body string) {
	t.Helper()
	if w := call(set, local, http.MethodPost, body); w.Code != http.StatusCreated {
		t.Fatalf("POST %s: %d %s, want 201", body, w.Code, w.Body)
	}
}

func TestArmListDisarm(t *testing.T) {
	t.Parallel()
	set := newSet()
	arm(t, set, `{"step":"relay.sent","action":"error","match":"X7","after":1,"times":2}`)
	ids := []string{"01X7A", "01B"}
	var got []bool
	for range 5 {
		got = append(got, errors.Is(set.Observe(t.Context(), outbox.StepSent, ids), faults.ErrInjected))
	}
	if diff := cmp.Diff([]bool{false, true, true, false, false}, got); diff != "" {
		t.Errorf("errors, with one hit to let pass and two to act on (-want +got):\n%s", diff)
	}
	for step, ids := range map[string][]string{outbox.StepSent: {"01B"}, outbox.StepClaimed: {"01X7A"}} {
		if err := set.Observe(t.Context(), step, ids); err != nil {
			t.Errorf("%s %v: %v, want no fault there", step, ids, err)
		}
	}

	var list struct{ Faults []faults.Fault }
	if err := json.Unmarshal(call(set, local, http.MethodGet, "").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	want := []faults.Fault{{Step: "relay.sent", Action: faults.Error, Match: "X7", After: 1, Times: 2, Hits: 5, Acted: 2}}
	if diff := cmp.Diff(want, list.Faults); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}

	if w := call(set, local, http.MethodDelete, ""); w.Code != http.StatusNoContent || len(set.List()) != 0 {
		t.Errorf("DELETE: %d with %v left, want 204 and nothing", w.Code, set.List())
	}
}

func TestBadFaultsAreRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		``,
		`null`,
		`{"action":"crash"}`,
		`{"step":"relay.snet","action":"crash"}`,
		`{"step":"relay.sent"}`,
		`{"step":"relay.sent","action":"explode"}`,
		`{"step":"relay.sent","action":"delay"}`,
		`{"step":"relay.sent","action":"delay","delay":"-1s"}`,
		`{"step":"relay.sent","action":"delay","delay":3}`,
		`{"step":"relay.sent","action":"clock"}`,
		`{"step":"relay.sent","action":"crash","times":-1}`,
		`{"step":"relay.sent","action":"crash","after":-1}`,
		`{"step":"relay.sent","action":"crash","tims":2}`,
		`{"step":"relay.sent","action":"crash","match":"` + strings.Repeat("x", 5000) + `"}`,
	} {
		set := newSet()
		w := call(set, local, http.MethodPost, body)
		if w.Code != http.StatusBadRequest || len(set.List()) != 0 {
			t.Errorf("POST %.60s: %d with %v armed, want 400 and nothing", body, w.Code, set.List())
		}
		if got, want := w.Header().Get("Content-Type"), "application/problem+json"; got != want {
			t.Errorf("POST %.60s: content type %q, want %q", body, got, want)
		}
	}
}

func TestOnlyThisMachineMayArm(t *testing.T) {
	t.Parallel()
	const crash = `{"step":"relay.sent","action":"crash"}`
	for _, peer := range []string{"10.0.0.7:4000", "[2001:db8::1]:4000", "@", ""} {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			set := newSet()
			if w := call(set, peer, method, crash); w.Code != http.StatusForbidden || len(set.List()) != 0 {
				t.Errorf("%s from %q: %d, want 403", method, peer, w.Code)
			}
		}
	}
	for _, peer := range []string{"[::1]:4000", "[::ffff:127.0.0.1]:4000"} {
		if w := call(newSet(), peer, http.MethodPost, crash); w.Code != http.StatusCreated {
			t.Errorf("POST from %q: %d, want 201", peer, w.Code)
		}
	}
	// A page of another site, in a browser on this machine.
	if w := call(newSet(), local, http.MethodPost, crash, "Sec-Fetch-Site", "cross-site"); w.Code != http.StatusForbidden {
		t.Errorf("POST from another site: %d, want 403", w.Code)
	}
	if w := call(newSet(), local, http.MethodPut, crash); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %d, want 405", w.Code)
	}
}

func TestDelayEndsWithContext(t *testing.T) {
	t.Parallel()
	set := newSet()
	arm(t, set, `{"step":"relay.sent","action":"delay","delay":"1h"}`)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := set.Observe(ctx, outbox.StepSent, []string{"a"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}

	arm(t, set, `{"step":"relay.settled","action":"delay","delay":"20ms"}`)
	start := time.Now()
	if err := set.Observe(t.Context(), outbox.StepSettled, []string{"a"}); err != nil || time.Since(start) < 20*time.Millisecond {
		t.Errorf("error %v after %s, want none after 20ms", err, time.Since(start))
	}
}

// A clock cannot be made wrong in an ordinary build, and a fault that would do
// nothing is refused. TestWrongClocks of package e2e has one that can.
func TestClockOfTheMachine(t *testing.T) {
	t.Parallel()
	set := newSet()
	w := call(set, local, http.MethodPost, `{"action":"clock","offset":"10m"}`)
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "internal/wrongclock") || len(set.List()) != 0 {
		t.Errorf("POST: %d %s with %v armed, want 400 that says what to build", w.Code, w.Body, set.List())
	}
}

// victim is the environment variable that makes this test binary a process to
// be crashed or stopped.
const victim = "BATON_FAULTS_TEST_VICTIM"

func TestMain(m *testing.M) {
	action := os.Getenv(victim)
	if action == "" {
		os.Exit(m.Run())
	}
	set := newSet()
	if _, err := set.Arm(faults.Fault{Step: outbox.StepSent, Action: faults.Action(action)}); err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	// Busy threads: the signal must stop this goroutine, whichever thread the
	// kernel would rather hand it to.
	for range 4 {
		go func() {
			for {
				runtime.Gosched()
			}
		}()
	}
	err := set.Observe(context.Background(), outbox.StepSent, []string{"01A", "01B"})
	fmt.Println("went on:", err)
}

func TestCrashIsSIGKILL(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victim+"="+string(faults.Crash))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // killed, so this is an error: the state below says which
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("ended by %v, want SIGKILL", cmd.ProcessState)
	}
	if got, want := stderr.String(), "fault: crash at relay.sent ids=[01A 01B]\n"; got != want {
		t.Errorf("stderr %q, want %q", got, want)
	}
	if stdout.Len() > 0 {
		t.Errorf("the process %q after its crash", &stdout)
	}
}

func TestStopIsSIGSTOP(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victim+"="+string(faults.Stop))
	stdout, err := os.CreateTemp(t.TempDir(), "stdout")
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	cmd.Stdout = stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 200)
	n, err := stderr.Read(said)
	if got, want := string(said[:n]), "fault: stop at relay.sent ids=[01A 01B]\n"; err != nil || got != want {
		t.Errorf("stderr %q (%v), want %q", got, err, want)
	}

	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() || status.StopSignal() != syscall.SIGSTOP {
		t.Fatalf("status %#x (%v), want stopped by SIGSTOP", status, err)
	}
	if b, _ := os.ReadFile(stdout.Name()); len(b) > 0 {
		t.Errorf("the process %q before it stopped", b)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, stderr)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(stdout.Name()); string(b) != "went on: <nil>\n" {
		t.Errorf("after SIGCONT the process said %q, want that it went on", b)
	}
}
