package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/baton/internal/check"
	"example.com/baton/internal/record"
)

// Report is what a run has shown. OK is false if a rule is broken or there is a
// problem.
type Report struct {
	check.Report
	Accepted int `json:"accepted"` // orders that a client has a 201 for
	// Problems are what is wrong apart from the rules: a load that fell short, a
	// fault that could not be done or was not mended.
	Problems []string `json:"problems"`

	Seed            uint64  `json:"seed"`
	LoadSeconds     float64 `json:"load_seconds"`
	OrdersPerSecond float64 `json:"orders_per_second"` // accepted

	// DuplicatesPublished are messages sent beyond the first of each event, as the
	// broker's firehose shows them. What it shows in the moment in which a broker
	// is killed may be lost: NotSeen are the events of which it has shown nothing.
	DuplicatesPublished int `json:"duplicates_published"`
	NotSeen             int `json:"events_not_seen"`
	// Returned are messages that came back because no queue took them, by the
	// metrics of the processes; each was sent again, and is a duplicate published.
	Returned int `json:"returned"`
	// DuplicatesAbsorbed are deliveries that an inbox knew already, by the metrics
	// of the processes. What a process counted in the last quarter of a second
	// before its death is not in it.
	DuplicatesAbsorbed int `json:"duplicates_absorbed"`
	RequestsRepeated   int `json:"requests_repeated"` // by clients that had no answer

	LongestOutageSeconds float64 `json:"longest_outage_seconds"` // in which no client was told that its order is accepted
	SlowestAnswerSeconds float64 `json:"slowest_answer_seconds"` // until a client had its 201
	SettledSeconds       float64 `json:"settled_seconds"`        // from the end of the load until everything was handled

	Faults     map[Kind]int      `json:"faults"` // how often each was done
	Recoveries map[Kind]Recovery `json:"recoveries"`

	Origin record.Origin `json:"origin"`
}

// Recovery is how long it took from the moment that a fault was over until
// inventory had answered every order accepted before. A fault is over when it is
// mended; a kill, a cut and a deletion are over at once.
type Recovery struct {
	MedianSeconds  float64 `json:"median_seconds"`
	LongestSeconds float64 `json:"longest_seconds"`
}

func (r *run) report(ctx context.Context, found check.Report, clients []check.Violation, copies map[string]int, sent int, took, settled time.Duration) Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.load
	l.mu.Lock()
	defer l.mu.Unlock()
	rep := Report{
		Report: found, Accepted: len(l.orders), Problems: append([]string{}, r.problems...),
		Seed: r.Seed, LoadSeconds: took.Seconds(), OrdersPerSecond: float64(len(l.orders)) / took.Seconds(),
		RequestsRepeated:     l.repeated,
		LongestOutageSeconds: l.gap.Seconds(), SlowestAnswerSeconds: l.slowest.Seconds(), SettledSeconds: settled.Seconds(),
		NotSeen: sent - len(copies),
		Faults:  r.faults, Recoveries: make(map[Kind]Recovery),
		Origin: record.NewOrigin(ctx, map[string]string{"postgresql": r.stack.Postgres.Version(), "rabbitmq": r.stack.Broker.Version()}),
	}
	rep.Violations = append(rep.Violations, clients...)
	for _, n := range copies {
		rep.DuplicatesPublished += n - 1
	}
	for _, c := range r.lives {
		rep.DuplicatesAbsorbed += int(c.absorbed)
		rep.Returned += int(c.returned)
	}
	for kind, times := range r.recoveries {
		slices.Sort(times)
		n := len(times)
		rep.Recoveries[kind] = Recovery{
			MedianSeconds:  (times[(n-1)/2] + times[n/2]).Seconds() / 2,
			LongestSeconds: times[n-1].Seconds(),
		}
	}
	for _, kind := range Kinds() {
		if r.faults[kind] == 0 && r.Duration >= wholeRun {
			rep.Problems = append(rep.Problems, "the plan was not carried out: no "+string(kind))
		}
	}
	rep.Problems = append(rep.Problems, l.unexpected...)
	if least := float64(r.Rate) * 5 / 6; rep.OrdersPerSecond < least {
		rep.Problems = append(rep.Problems, fmt.Sprintf("the load fell short: %.1f orders a second, want %.0f", rep.OrdersPerSecond, least))
	}
	if len(l.orders) < r.Orders {
		rep.Problems = append(rep.Problems, fmt.Sprintf("the load fell short: %d orders, want %d", len(l.orders), r.Orders))
	}
	rep.OK = len(rep.Violations)+len(rep.Problems) == 0
	return rep
}

// Text is the report for people: what is wrong, and one paragraph of figures.
func (r Report) Text() string {
	var b strings.Builder
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "violation: %s, %d times: %s\n", v.Rule, v.Count, v.Detail)
		fmt.Fprintf(&b, "  events %s\n  orders %s\n", strings.Join(v.EventIDs, " "), strings.Join(v.OrderIDs, " "))
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	if r.OK {
		b.WriteString("Every order that a client was told of was handled once. ")
	}
	b.WriteString(r.paragraph())
	return b.String()
}

func (r Report) paragraph() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Accepted %d orders in %.0f s (%.0f a second): %d reserved, %d rejected, %d released, %d cancelled first, %d dead, %d failed, %d in flight. ",
		r.Accepted, r.LoadSeconds, r.OrdersPerSecond, r.Reserved, r.Rejected, r.Released, r.CancelledFirst, r.Dead, r.Failed, r.InFlight)
	fmt.Fprintf(&b, "%d duplicates published, %d of them after they had come back from a missing binding; %d duplicates absorbed by an inbox; %d requests repeated by clients. ",
		r.DuplicatesPublished, r.Returned, r.DuplicatesAbsorbed, r.RequestsRepeated)
	fmt.Fprintf(&b, "Longest outage as clients saw it %.1f s, slowest answer %.1f s; all handled %.1f s after the load. ",
		r.LongestOutageSeconds, r.SlowestAnswerSeconds, r.SettledSeconds)
	total := 0
	var each []string
	for _, kind := range r.kinds() {
		total += r.Faults[kind]
		each = append(each, fmt.Sprintf("%s %d× (%s)", kind, r.Faults[kind], seconds(r.Recoveries[kind].LongestSeconds)))
	}
	fmt.Fprintf(&b, "%d faults, each with the longest time from its end until inventory had answered every order from before: %s.", total, strings.Join(each, ", "))
	return b.String()
}

// kinds are those that were done, as they are listed in the plan.
func (r Report) kinds() []Kind {
	return slices.DeleteFunc(Kinds(), func(k Kind) bool { return r.Faults[k] == 0 })
}

// Markdown is the report as a section of a page.
func (r Report) Markdown() string {
	var b strings.Builder
	verdict := "Every order that a client was told of was handled once: no rule is broken."
	if !r.OK {
		verdict = fmt.Sprintf("**Not so: %d rules are broken, and there are %d problems.**", len(r.Violations), len(r.Problems))
	}
	fmt.Fprintf(&b, "%s\n%s\n\n", r.Origin.Markdown(), verdict)
	b.WriteString("| figure | |\n|---|---|\n")
	for _, row := range []struct {
		name  string
		value string
	}{
		{"orders accepted", fmt.Sprintf("%d in %.0f s, %.1f a second", r.Accepted, r.LoadSeconds, r.OrdersPerSecond)},
		{"reserved", fmt.Sprint(r.Reserved)},
		{"rejected, out of stock", fmt.Sprint(r.Rejected)},
		{"released, cancelled after they were reserved", fmt.Sprint(r.Released)},
		{"cancelled first, before inventory heard of them", fmt.Sprint(r.CancelledFirst)},
		{"dead, failed, in flight", fmt.Sprintf("%d, %d, %d", r.Dead, r.Failed, r.InFlight)},
		{"duplicates published, at least", fmt.Sprint(r.DuplicatesPublished)},
		{"events that the firehose has not shown", fmt.Sprint(r.NotSeen)},
		{"of the duplicates, sent again because no queue had taken them", fmt.Sprint(r.Returned)},
		{"duplicates absorbed, at least", fmt.Sprint(r.DuplicatesAbsorbed)},
		{"requests that clients repeated", fmt.Sprint(r.RequestsRepeated)},
		{"longest time without an accepted order", fmt.Sprintf("%.1f s", r.LongestOutageSeconds)},
		{"longest wait of a client for its 201", fmt.Sprintf("%.1f s", r.SlowestAnswerSeconds)},
		{"from the end of the load until all was handled", fmt.Sprintf("%.1f s", r.SettledSeconds)},
	} {
		fmt.Fprintf(&b, "| %s | %s |\n", row.name, row.value)
	}
	b.WriteString("\n| fault | times | recovery, median | longest |\n|---|---|---|---|\n")
	for _, kind := range r.kinds() {
		rec := r.Recoveries[kind]
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", kind, r.Faults[kind], seconds(rec.MedianSeconds), seconds(rec.LongestSeconds))
	}
	return b.String()
}

// seconds is a time for people; 0 is one that was not reached.
func seconds(s float64) string {
	if s == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f s", s)
}
