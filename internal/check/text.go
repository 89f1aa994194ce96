package check

import (
	"fmt"
	"strings"
)

// Text is the report as a table for people, with the verdict last.
func (r Report) Text() string {
	var text strings.Builder
	for _, row := range []struct {
		sign, name string
		n          int
	}{
		{"", "orders", r.Orders},
		{"=", "reserved", r.Reserved},
		{"+", "rejected", r.Rejected},
		{"+", "released", r.Released},
		{"+", "cancelled first", r.CancelledFirst},
		{"+", "dead", r.Dead},
		{"+", "failed", r.Failed},
		{"+", "in flight", r.InFlight},
	} {
		fmt.Fprintf(&text, "%1s %-15s %9d\n", row.sign, row.name, row.n)
	}
	m := r.Messages
	fmt.Fprintf(&text, "\nmessages: %d not sent, %d sent and not handled, %d failed, %d dead-lettered\nbroker: %s\n",
		m.Unsent, m.Unheard, m.Failed, m.DeadLetters, r.Broker)
	if r.Unsettled != "" {
		fmt.Fprintf(&text, "%s\n", r.Unsettled)
	}
	if r.OK {
		text.WriteString("\nok: no rule is broken\n")
		return text.String()
	}
	meaning := make(map[string]string)
	for _, rule := range Rules() {
		meaning[rule.Name] = rule.Meaning
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&text, "\n%s, %d: %s\n  but %s\n", v.Rule, v.Count, meaning[v.Rule], v.Detail)
		writeIDs(&text, "events", v.EventIDs, v.Count)
		writeIDs(&text, "orders", v.OrderIDs, v.Count)
	}
	fmt.Fprintf(&text, "\nBROKEN: %d of %d rules\n", len(r.Violations), len(Rules()))
	return text.String()
}

func writeIDs(text *strings.Builder, what string, ids []string, count int) {
	if len(ids) == 0 {
		return
	}
	fmt.Fprintf(text, "  %s %s", what, strings.Join(ids, " "))
	if more := count - len(ids); more > 0 && len(ids) == MostIDs {
		fmt.Fprintf(text, " and %d more", more)
	}
	text.WriteByte('\n')
}
