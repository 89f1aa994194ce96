package readme

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// memory is what an id of the page is in this run: the page shows those of some
// other run, and each must stand for the same id wherever it is.
type memory map[string]string

// What of the page's output is another in each run: ids, times, durations,
// versions and the width of columns. "…" stands for anything.
var varies = regexp.MustCompile(`…|` +
	`(?P<order>ORD-\d{8}-\d{6,})|(?P<event>\b01[0-9A-HJKMNP-TV-Z]{24}\b)|` +
	`(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)|` +
	`(?P<took>\d+\.\d+ m?s\b)|(?P<version>\b(?:PostgreSQL|RabbitMQ) [\d.]+)|` +
	`(?P<space>\s*\n\s*|  +)`)

var patterns = map[string]string{
	"order": `(ORD-\d{8}-\d{6,})`, "event": `(01[0-9A-HJKMNP-TV-Z]{24})`,
	"time": `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z`,
	"took": `\d+\.\d+ m?s`, "version": `(?:PostgreSQL|RabbitMQ) [\d.]+`, "space": `\s*`,
}

// match reports whether got is what want shows, and learns the ids that are new.
// With whole, nothing may come before or after it.
func (m memory) match(want, got string, whole bool) error {
	want, got = strings.TrimSpace(want), strings.TrimSpace(strings.ReplaceAll(got, "\r", ""))
	var pattern strings.Builder
	var ids []string // of the page, one for each group
	rest := 0
	for _, at := range varies.FindAllStringSubmatchIndex(want, -1) {
		pattern.WriteString(regexp.QuoteMeta(want[rest:at[0]]))
		rest = at[1]
		kind := ""
		for i, name := range varies.SubexpNames() {
			if i > 0 && at[2*i] >= 0 {
				kind = name
			}
		}
		switch kind {
		case "":
			pattern.WriteString(`(?s:.*?)`)
		case "order", "event":
			ids = append(ids, want[at[0]:at[1]])
			fallthrough
		default:
			pattern.WriteString(patterns[kind])
		}
	}
	pattern.WriteString(regexp.QuoteMeta(want[rest:]))
	text := pattern.String()
	if whole {
		text = `\A` + text + `\z`
	}
	groups := regexp.MustCompile(text).FindStringSubmatch(got)
	if groups == nil {
		return fmt.Errorf("got\n%s\nwant\n%s", got, want)
	}
	learned := make(memory)
	for i, id := range ids {
		real := groups[i+1]
		for _, known := range []memory{m, learned} {
			if was, ok := known[id]; ok && was != real {
				return fmt.Errorf("%s of the page was %s and is %s now, in\n%s", id, was, real, got)
			}
		}
		learned[id] = real
	}
	for id, real := range learned {
		m[id] = real
	}
	return nil
}

// here puts the ids of this run in place of the page's.
func (m memory) here(command string) string {
	for id, real := range m {
		command = strings.ReplaceAll(command, id, real)
	}
	return command
}

func TestMatch(t *testing.T) {
	t.Parallel()
	m := memory{}
	for _, tt := range []struct {
		name, want, got string
		ok              bool
	}{
		{"first sight", `{"id":"ORD-20260101-000001",…,"n":1}`, `{"id":"ORD-20270202-000007","x":2,"n":1}`, true},
		{"the same id", `ORD-20260101-000001 9.3 ms`, "ORD-20270202-000007 11.25 ms", true},
		{"another id", `ORD-20260101-000001`, "ORD-20270202-000008", false},
		{"another number", `{"status":409}`, `{"status":410}`, false},
		{"wrapped", "{\"a\":1,\n \"b\":2}", `{"a":1,"b":2}`, true},
		{"columns", "A  B\n1  2", "A      B\r\n1      2", true},
		{"one id for two", `ORD-20260101-000002 ORD-20260101-000002`, "ORD-20270202-000001 ORD-20270202-000002", false},
		{"more than was shown", `ok`, "ok, mostly", false},
	} {
		if err := m.match(tt.want, tt.got, true); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if got, want := m.here("curl /orders/ORD-20260101-000001"), "curl /orders/ORD-20270202-000007"; got != want {
		t.Errorf("command %q, want %q", got, want)
	}
}
