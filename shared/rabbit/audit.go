package rabbit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Audit compares the bindings that must exist with those that do, through the
// management API, because AMQP cannot list bindings and a mandatory publish
// proves only that some queue took the message.
type Audit struct {
	// ManagementURL has a user with the management tag and needs no permission on
	// anything: "http://audit:secret@127.0.0.1:15672". Empty: the audit says that
	// nothing was checked, and never that all is well.
	ManagementURL string
	AMQPURL       string // names the vhost
	Bindings      []Binding
	// Unwanted, when set, tells which bindings of a queue must not be there. They
	// are reported and not repaired.
	Unwanted func(Binding) bool
	Interval time.Duration // defaults to 30 seconds
	// Repair, when set, is called when a binding is missing in two looks in a row:
	// when everything starts at once, the first may just have come too early.
	Repair func(missing error)
	Logger *slog.Logger

	mu    sync.Mutex
	state AuditState
}

// AuditState is what the last audit found.
type AuditState struct {
	Checked bool      // false: the management API was not asked or did not answer
	Missing []Binding // bindings that must exist and do not
	Problem string    // why nothing was checked, or what is missing or too much and what to do
}

// State returns what the last audit found.
func (a *Audit) State() AuditState {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.state.Checked && a.state.Problem == "" {
		return AuditState{Problem: "bindings not checked yet"}
	}
	return a.state
}

// Run audits at once and then at every interval until ctx is done, and returns
// nil.
func (a *Audit) Run(ctx context.Context) error {
	log := cmp.Or(a.Logger, slog.Default())
	if a.ManagementURL == "" {
		a.set(AuditState{Problem: "bindings not checked: no management URL"})
		<-ctx.Done()
		return nil
	}
	last, missing := "", 0
	for ctx.Err() == nil {
		state := a.check(ctx)
		if ctx.Err() != nil {
			break
		}
		a.set(state)
		news := state.Problem
		if !state.Checked {
			news = "not checked" // once, whatever the reason says of ports
		}
		if news != last {
			if news != "" {
				log.Warn("audit of bindings", "err", state.Problem)
			} else if last != "" {
				log.Info("audit of bindings: all there")
			}
			last = news
		}
		interval := cmp.Or(a.Interval, 30*time.Second)
		if len(state.Missing) == 0 {
			missing = 0
			pause(ctx, interval)
			continue
		}
		if missing++; missing > 1 && a.Repair != nil {
			a.Repair(errors.New(state.Problem))
		}
		pause(ctx, min(interval, time.Second<<min(missing-1, 10))) // sooner than usual
	}
	return nil
}

func (a *Audit) set(s AuditState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = s
}

func (a *Audit) check(ctx context.Context) AuditState {
	found, unwanted, err := a.list(ctx)
	if err != nil {
		return AuditState{Problem: "bindings not checked: " + err.Error()}
	}
	state := AuditState{Checked: true}
	var names []string
	for _, b := range a.Bindings {
		if !found[b] {
			state.Missing = append(state.Missing, b)
			names = append(names, b.String())
		}
	}
	if len(names) > 0 {
		state.Problem = "bindings missing, their messages go nowhere: " + strings.Join(names, ", ") +
			" (the service that owns the queue binds it again when it connects)"
	} else if len(unwanted) > 0 {
		state.Problem = "bindings of another number of queues: " + strings.Join(unwanted, ", ") +
			" (give all processes the same number, then start one of them again)"
	}
	return state
}

// list asks for the bindings of the vhost, and tells which of them are unwanted.
func (a *Audit) list(ctx context.Context) (found map[Binding]bool, unwanted []string, err error) {
	u, err := url.Parse(a.ManagementURL)
	if err != nil {
		return nil, nil, errors.New("the management URL cannot be parsed")
	}
	broker, err := amqp.ParseURI(a.AMQPURL)
	if err != nil {
		return nil, nil, withoutURL(err)
	}
	user := u.User
	u.User = nil
	u = u.JoinPath("api", "bindings", url.PathEscape(broker.Vhost))
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	if user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("management API answered %s for user %q", res.Status, user.Username())
	}
	var listed []struct {
		Source, Destination string
		DestinationType     string `json:"destination_type"`
		RoutingKey          string `json:"routing_key"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 64<<20)).Decode(&listed); err != nil {
		return nil, nil, fmt.Errorf("management API: %w", err)
	}
	found = make(map[Binding]bool, len(listed))
	for _, l := range listed {
		b := Binding{l.Source, l.Destination, l.RoutingKey}
		found[b] = true
		if l.DestinationType == "queue" && a.Unwanted != nil && a.Unwanted(b) {
			unwanted = append(unwanted, b.String())
		}
	}
	return found, unwanted, nil
}
