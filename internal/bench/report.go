package bench

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"example.com/baton/internal/record"
)

// Report is what a run has measured. OK is false if a goal that was measured is
// not what it must be.
type Report struct {
	OK    bool   `json:"ok"`
	Goals []Goal `json:"goals"`

	Comparisons []Comparison `json:"comparisons"`
	Latencies   []Latency    `json:"latencies"`   // one for each pair
	Memory      []Figure     `json:"memory"`      // resident, in MiB, at the end of each of those
	Allocations []Figure     `json:"allocations"` // heap objects for each message, start of the process included
	Costs       []Cost       `json:"costs,omitempty"`
	Peers       []Peer       `json:"peers,omitempty"`
	Duplicates  int          `json:"duplicates"` // that two processes of inventory met

	Quick    bool          `json:"quick"`
	Pairs    int           `json:"pairs"`
	Messages int           `json:"messages"` // that a rate is measured over
	Origin   record.Origin `json:"origin"`
}

// Comparison is a floor and the product, measured in turn. Floor, Product and
// Ratio are medians; Least and Most are of the ratios.
type Comparison struct {
	ID        string  `json:"id"`
	What      string  `json:"what"`
	FloorIs   string  `json:"floor_is"`
	ProductIs string  `json:"product_is"`
	Unit      string  `json:"unit"`
	Floor     float64 `json:"floor"`
	Product   float64 `json:"product"`
	Ratio     float64 `json:"ratio"`
	Least     float64 `json:"least"`
	Most      float64 `json:"most"`
	Pairs     []Pair  `json:"pairs"`
}

// Latency are the percentiles of N times, in milliseconds.
type Latency struct {
	What string  `json:"what"`
	N    int     `json:"n"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
}

// Figure is a number of something.
type Figure struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
}

// Cost is what things take, in milliseconds, with so many rows of a kind.
type Cost struct {
	Series   string  `json:"series"`
	Size     int     `json:"size"`
	Claim    float64 `json:"claim"`    // mean
	Post     float64 `json:"post"`     // half within
	Handling float64 `json:"handling"` // of a batch by inventory, half within
}

// Peer is the answer of a program of bench/peers.
type Peer struct {
	Name      string  `json:"peer"`
	Version   string  `json:"version"`
	Queue     string  `json:"queue"`
	Messages  int     `json:"messages"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	Guarantee string  `json:"guarantee"`
	Setup     string  `json:"setup"`
}

func (g Goal) show(v float64) string {
	switch {
	case v == 0:
		return "–"
	case g.Unit != "":
		return fmt.Sprintf("%.1f %s", v, g.Unit)
	case v >= 10:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (g Goal) verdict() string {
	switch {
	case !g.OK:
		return "missed"
	case g.met(g.Goal):
		return "goal"
	case g.Must == 0:
		return "not yet"
	}
	return "must"
}

func (g Goal) row() []string {
	return []string{g.ID, g.What, g.show(g.Value), g.show(g.Least) + " to " + g.show(g.Most), g.show(g.Must), g.show(g.Goal), g.verdict()}
}

func (c Comparison) row() []string {
	show := comparisons[c.ID].show
	return []string{c.What, c.FloorIs + " " + show(c.Floor), c.ProductIs + " " + show(c.Product),
		fmt.Sprintf("%.2f", c.Ratio), fmt.Sprintf("%.2f to %.2f", c.Least, c.Most)}
}

func (l Latency) row() []string {
	ms := func(v float64) string { return fmt.Sprintf("%.1f ms", v) }
	return []string{l.What, fmt.Sprint(l.N), ms(l.P50), ms(l.P95), ms(l.P99)}
}

var (
	goalHead       = []string{"", "what", "median", "pairs", "must", "goal", "met"}
	comparisonHead = []string{"what", "floor", "product", "ratio", "pairs"}
	latencyHead    = []string{"what", "n", "50 %", "95 %", "99 %"}
)

// tables are those of the report, each with its head as the first row.
func (r Report) tables() [][][]string {
	gs, cs, ls := [][]string{goalHead}, [][]string{comparisonHead}, [][]string{latencyHead}
	for _, g := range r.Goals {
		gs = append(gs, g.row())
	}
	for _, c := range r.Comparisons {
		cs = append(cs, c.row())
	}
	for _, l := range r.Latencies {
		ls = append(ls, l.row())
	}
	return [][][]string{gs, cs, ls}
}

// Text is the report for people.
func (r Report) Text() string {
	var b strings.Builder
	for _, table := range r.tables() {
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, row := range table {
			fmt.Fprintln(w, strings.Join(row, "\t")) // into memory
		}
		w.Flush()
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%d pairs, %d messages each. PostgreSQL %s, RabbitMQ %s, Go %s; %s.", r.Pairs, r.Messages,
		r.Origin.Versions["postgresql"], r.Origin.Versions["rabbitmq"], r.Origin.Versions["go"], r.Origin.Machine)
	return b.String()
}

// Markdown is the report as a section of a page.
func (r Report) Markdown() string {
	var b strings.Builder
	b.WriteString(r.Origin.Markdown())
	fmt.Fprintf(&b, "- %d pairs, %d messages each\n", r.Pairs, r.Messages)
	for _, table := range r.tables() {
		b.WriteString(markdownTable(table))
	}
	memory := [][]string{{"what", "each pair"}}
	for _, of := range []struct {
		unit    string
		figures []Figure
	}{{"MiB resident at 200 orders/s", r.Memory}, {"heap objects", r.Allocations}} {
		by := map[string][]string{}
		for _, f := range of.figures {
			if by[f.What] == nil {
				memory = append(memory, []string{f.What})
			}
			by[f.What] = append(by[f.What], fmt.Sprintf("%.1f", f.Value))
		}
		for i, row := range memory {
			if v, ok := by[row[0]]; ok && len(row) == 1 {
				memory[i] = []string{row[0] + ": " + of.unit, strings.Join(v, ", ")}
			}
		}
	}
	b.WriteString(markdownTable(memory))
	if len(r.Peers) > 0 {
		rows := [][]string{{"peer", "msg/s, each pair", "queue", "set-up", "what it guarantees", "version"}}
		for _, p := range peersMeasured {
			var rates []string
			var last Peer
			for _, got := range r.Peers {
				if got.Name == p.name {
					rates, last = append(rates, fmt.Sprintf("%.0f", got.PerSecond)), got
				}
			}
			rows = append(rows, []string{"`" + p.name + "`", strings.Join(rates, ", "), last.Queue, last.Setup, last.Guarantee, last.Version})
		}
		b.WriteString(markdownTable(rows))
	}
	if len(r.Costs) > 0 {
		rows := [][]string{{"rows", "of what", "claim", "POST, half within", "handling, half within"}}
		for _, c := range r.Costs {
			rows = append(rows, []string{fmt.Sprint(c.Size), c.Series,
				fmt.Sprintf("%.1f ms", c.Claim), fmt.Sprintf("%.1f ms", c.Post), fmt.Sprintf("%.1f ms", c.Handling)})
		}
		b.WriteString(markdownTable(rows))
	}
	return b.String()
}

func markdownTable(rows [][]string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for i, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return b.String()
}
