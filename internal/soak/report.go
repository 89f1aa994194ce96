package soak

import (
	"fmt"
	"strings"

	"example.com/baton/internal/check"
	"example.com/baton/internal/record"
)

// Report is what a run has shown. OK is false if a figure has grown, a rule is
// broken, or there is a problem.
type Report struct {
	OK              bool    `json:"ok"`
	Accepted        int     `json:"accepted"` // orders that a client has a 201 for
	Repeated        int     `json:"repeated"` // requests that clients had to send again
	Rate            int     `json:"rate"`     // that was asked for, in orders a second
	LoadSeconds     float64 `json:"load_seconds"`
	OrdersPerSecond float64 `json:"orders_per_second"` // accepted
	Samples         int     `json:"samples"`

	Grown    []string     `json:"grown"`    // the figures that have, in words
	Problems []string     `json:"problems"` // what is wrong apart from figures and rules
	Check    check.Report `json:"check"`
	Figures  []Figure     `json:"figures"`

	Settings []string      `json:"settings"` // of every process, "NAME=value"
	Origin   record.Origin `json:"origin"`
}

// Figure is something that must not grow.
type Figure struct {
	What  string `json:"what"`
	Where string `json:"where"` // process, database.table, queue
	Unit  string `json:"unit"`  // bytes, seconds, or "" for a number
	// Quarters are the medians of the quarters of the load.
	Quarters [4]float64 `json:"quarters"`
	// Most is what the last quarter may be: a tenth more than the second, or so
	// little more that it means nothing.
	Most   float64 `json:"most"`
	Judged bool    `json:"judged"` // false for what keeps all orders and so grows with them
	Grew   bool    `json:"grew"`
}

func (f Figure) name() string { return f.Where + ": " + f.What }

// conclude fills in the verdict.
func (r *Report) conclude(orders, missed int) {
	r.Grown = []string{}
	for _, f := range r.Figures {
		if f.Grew {
			r.Grown = append(r.Grown, fmt.Sprintf("%s: %s in the second quarter, %s in the last, may be %s",
				f.name(), show(f.Quarters[1], f.Unit), show(f.Quarters[3], f.Unit), show(f.Most, f.Unit)))
		}
	}
	problem := func(format string, args ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, args...)) }
	if r.Accepted != orders || r.Check.Orders != orders {
		problem("%d orders were accepted and %d are stored, want %d", r.Accepted, r.Check.Orders, orders)
	}
	if least := 0.9 * float64(r.Rate); r.OrdersPerSecond < least {
		problem("the services did not keep up: %.0f orders a second, want at least %.0f", r.OrdersPerSecond, least)
	}
	if missed > r.Samples/10 {
		problem("%d samples could not be taken", missed)
	}
	if r.Check.Unsettled != "" {
		problem("%s", r.Check.Unsettled)
	}
	r.OK = len(r.Grown)+len(r.Problems) == 0 && r.Check.OK
}

// show writes a number of a unit for people.
func show(v float64, unit string) string {
	switch {
	case unit == bytesUnit:
		return fmt.Sprintf("%.1f MiB", v/mib)
	case unit == secondsUnit:
		return fmt.Sprintf("%.1f ms", v*1000)
	}
	return fmt.Sprintf("%.0f", v)
}

// Text is the report for people.
func (r Report) Text() string {
	var b strings.Builder
	for _, v := range r.Check.Violations {
		fmt.Fprintf(&b, "violation: %s, %d times: %s\n", v.Rule, v.Count, v.Detail)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	for _, f := range r.Figures {
		fmt.Fprintf(&b, "%-58s %s\n", f.name(), strings.Join(f.row(), "  "))
	}
	for _, g := range r.Grown {
		fmt.Fprintf(&b, "grown: %s\n", g)
	}
	b.WriteString(r.summary())
	return b.String()
}

func (f Figure) row() []string {
	row := make([]string, 0, 5)
	for _, v := range f.Quarters {
		row = append(row, show(v, f.Unit))
	}
	verdict := "ok"
	switch {
	case f.Grew:
		verdict = "**grew**"
	case !f.Judged:
		verdict = "keeps all orders"
	}
	return append(row, verdict)
}

func (r Report) summary() string {
	verdict := "Nothing has grown that should not, and every order was handled once."
	if !r.OK {
		verdict = fmt.Sprintf("Not good: %d figures have grown, %d rules are broken, and there are %d problems.", len(r.Grown), len(r.Check.Violations), len(r.Problems))
	}
	return fmt.Sprintf("%s %d orders in %.0f s, %.0f a second; %d reserved, %d released, %d cancelled first, %d rejected; %d requests sent again; %d samples.",
		verdict, r.Accepted, r.LoadSeconds, r.OrdersPerSecond, r.Check.Reserved, r.Check.Released, r.Check.CancelledFirst, r.Check.Rejected, r.Repeated, r.Samples)
}

// Markdown is the report as a section of a page.
func (r Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s- settings of both services: `%s`\n\n%s\n\n", r.Origin.Markdown(), strings.Join(r.Settings, "` `"), r.summary())
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "- problem: %s\n", p)
	}
	b.WriteString("| what | where | 1st quarter | 2nd | 3rd | 4th | |\n|---|---|---|---|---|---|---|\n")
	for _, f := range r.Figures {
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", f.What, f.Where, strings.Join(f.row(), " | "))
	}
	return b.String()
}
