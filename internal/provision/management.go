package provision

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Management speaks to a broker's management API.
type Management struct {
	base           string // without user and password, so that errors may show it
	user, password string
}

// NewManagement reads an address such as http://user:password@127.0.0.1:15672.
func NewManagement(address string) (*Management, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User == nil {
		return nil, errors.New("management address is not like http://user:password@host:15672") // err would show the password
	}
	m := &Management{user: u.User.Username()}
	m.password, _ = u.User.Password()
	u.User = nil
	m.base = strings.TrimSuffix(u.String(), "/")
	return m, nil
}

// StatusError is an answer of the management API that is not success.
type StatusError struct {
	Method, Path string
	Code         int
	Reason       string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("management API: %s %s: %d %s", e.Method, e.Path, e.Code, e.Reason)
}

// NotFound reports whether err is a 404 of the management API.
func NotFound(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}

// Do sends a request and decodes the answer into out. The path starts at /api
// and is made with [Path]; in and out are JSON values, or nil.
func (m *Management) Do(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, m.base+"/api"+path, body)
	if err != nil {
		return err
	}
	req.SetBasicAuth(m.user, m.password)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // no idle connection, and no goroutine, stays behind
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("management API: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		var problem struct{ Reason string }
		// A proxy's page is not JSON; the status says enough then.
		_ = json.NewDecoder(io.LimitReader(resp.Body, 4096)).Decode(&problem)
		return &StatusError{Method: method, Path: path, Code: resp.StatusCode, Reason: problem.Reason}
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("management API: %s %s: %w", method, path, err)
	}
	return nil
}

// Path joins the parts of a path, escaped: a vhost is often called "/".
func Path(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(p))
	}
	return b.String()
}
