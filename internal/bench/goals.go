package bench

import (
	"cmp"
	"fmt"
	"slices"
)

// comparison is what is measured in pairs.
type comparison struct {
	what           string
	floor, product string // what the two are
	unit           string
}

const (
	messageRate = "msg/s"
	orderRate   = "orders/s"
	millis      = "ms"
)

// comparisons by id: that of the goal, and a part of it after the dot.
var comparisons = map[string]comparison{
	"R1":           {"relay, classic queue", "raw publish", "relay", messageRate},
	"R2":           {"relay, quorum queue", "raw publish", "relay", messageRate},
	"R3":           {"relay and watermill's forwarder, tuned", "watermill", "relay", messageRate},
	"R4":           {"relay and watermill's forwarder as documented, with confirms", "watermill", "relay", messageRate},
	"R6.two":       {"two relays at once", "one", "two", messageRate},
	"R6.backoff":   {fmt.Sprintf("one relay beside %d rows in backoff", inBackoff), "none", "with them", messageRate},
	"R6.published": {fmt.Sprintf("one relay beside %d published rows", published), "none", "with them", messageRate},
	"C1":           {"consumer, quorum queue", "raw consume", "consumer", messageRate},
	"C1.whole":     {"the whole inventory service, which sends the answers too", "raw consume", "inventory", messageRate},
	"C2":           {"consumer and watermill's router, 16 handlers", "watermill", "inventory", messageRate},
	"C3":           {"consumer, every order for one SKU", "1000 SKUs", "one", messageRate},
	"A1.8":         {"POST /orders, 8 connections", "one statement", "POST", orderRate},
	"A1.32":        {"POST /orders, 32 connections", "one statement", "POST", orderRate},
	"L2":           {"200 orders/s, half within", "answered", "reserved", millis},
	"L2.99":        {"200 orders/s, 99 % within", "answered", "reserved", millis},
	"S1":           {"POST to reserved, one process of each service and two", "one", "two", orderRate},
	"P1":           {"relay and river, tuned", "river", "relay", messageRate},
	"P2":           {"relay and river as documented", "river", "relay", messageRate},
	"P3":           {"consumer and watermill's router as documented", "watermill", "inventory", messageRate},
}

// order of the tables.
var order = []string{"R1", "R2", "R3", "R4", "R6.two", "R6.backoff", "R6.published", "C1", "C1.whole", "C2", "C3", "A1.8", "A1.32", "L2", "L2.99", "S1", "P1", "P2", "P3"}

func (c comparison) show(v float64) string {
	if c.unit == millis {
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f %s", v, c.unit)
}

// Pair is a floor, and the product right after it.
type Pair struct {
	Floor   float64 `json:"floor"`
	Product float64 `json:"product"`
}

// Ratio is the product in parts of the floor.
func (p Pair) Ratio() float64 { return p.Product / p.Floor }

// Goal is one of the speeds that Baton is built for.
type Goal struct {
	ID    string  `json:"id"`
	What  string  `json:"what"`
	Unit  string  `json:"unit"` // "" for a ratio
	Value float64 `json:"value"`
	Least float64 `json:"least"` // of the values of the pairs
	Most  float64 `json:"most"`
	Must  float64 `json:"must"` // 0 if there is none
	Goal  float64 `json:"goal"`
	Lower bool    `json:"lower"` // the lower the better
	OK    bool    `json:"ok"`    // what it must be
}

// met reports whether a value is as good as a limit.
func (g Goal) met(limit float64) bool {
	return limit == 0 || g.Lower == (g.Value < limit) || g.Value == limit
}

// goals in the order of the report, with what they are measured by.
var goals = []struct {
	Goal
	pairs []string // ids of comparisons, of which the worst counts
	value func(Report) (values []float64)
}{
	{Goal{ID: "R1", What: "relay to raw publish, classic queue", Must: 0.70, Goal: 0.85}, []string{"R1"}, nil},
	{Goal{ID: "R2", What: "relay to raw publish, quorum queue", Must: 0.55, Goal: 0.75}, []string{"R2"}, nil},
	{Goal{ID: "R3", What: "relay to watermill's forwarder, tuned", Must: 8, Goal: 12}, []string{"R3"}, nil},
	{Goal{ID: "R4", What: "relay to watermill's forwarder as documented, with confirms", Must: 20, Goal: 30}, []string{"R4"}, nil},
	{Goal{ID: "R6", What: "two relays, or one beside much else, to one relay", Must: 0.85, Goal: 1}, []string{"R6.two", "R6.backoff", "R6.published"}, nil},
	{Goal{ID: "C1", What: "consumer to raw consume, quorum queue", Must: 0.35, Goal: 0.5}, []string{"C1"}, nil},
	{Goal{ID: "C2", What: "consumer to watermill's router with 16 handlers", Must: 5, Goal: 8}, []string{"C2"}, nil},
	{Goal{ID: "C3", What: "every order for one SKU to orders for 1000", Must: 0.7, Goal: 0.9}, []string{"C3"}, nil},
	{Goal{ID: "A1", What: "POST /orders to one statement, 8 and 32 connections", Must: 0.7, Goal: 0.9}, []string{"A1.8", "A1.32"}, nil},
	{Goal{ID: "L1.50", What: "idle: 201 until the message is in a queue, half within", Unit: millis, Must: 6, Goal: 3, Lower: true}, nil,
		func(r Report) []float64 { return r.latencies(arrivalWhat, func(l Latency) float64 { return l.P50 }) }},
	{Goal{ID: "L1.99", What: "the same, 99 % within", Unit: millis, Must: 20, Goal: 8, Lower: true}, nil,
		func(r Report) []float64 { return r.latencies(arrivalWhat, func(l Latency) float64 { return l.P99 }) }},
	{Goal{ID: "L2", What: "200 orders/s: POST until reserved to POST, half within", Must: 4, Goal: 2.5, Lower: true}, []string{"L2"}, nil},
	{Goal{ID: "M1.memory", What: "memory of a service at 200 orders/s", Unit: "MiB", Must: 64, Goal: 32, Lower: true}, nil,
		func(r Report) []float64 { return worst(r.Memory) }},
	{Goal{ID: "M1.allocations", What: "heap objects for each message", Goal: 40, Lower: true}, nil,
		func(r Report) []float64 { return worst(r.Allocations) }},
}

// worst are the values of that name whose median is highest.
func worst(figures []Figure) (values []float64) {
	by := map[string][]float64{}
	for _, f := range figures {
		by[f.What] = append(by[f.What], f.Value)
	}
	for _, v := range by {
		if len(values) == 0 || median(v) > median(values) {
			values = v
		}
	}
	return values
}

func (r Report) latencies(what string, of func(Latency) float64) (values []float64) {
	for _, l := range r.Latencies {
		if l.What == what {
			values = append(values, of(l))
		}
	}
	return values
}

// median of at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[n/2] + sorted[(n-1)/2]) / 2
}

// conclude makes the comparisons and goals of what was measured.
func (r *Report) conclude(figures map[string][]Pair) {
	ratios := map[string][]float64{}
	for _, id := range order {
		pairs := figures[id]
		if len(pairs) == 0 {
			continue
		}
		var floors, products []float64
		for _, p := range pairs {
			floors, products = append(floors, p.Floor), append(products, p.Product)
			ratios[id] = append(ratios[id], p.Ratio())
		}
		c := comparisons[id]
		r.Comparisons = append(r.Comparisons, Comparison{
			ID: id, What: c.what, FloorIs: c.floor, ProductIs: c.product, Unit: c.unit, Pairs: pairs,
			Floor: median(floors), Product: median(products),
			Ratio: median(ratios[id]), Least: slices.Min(ratios[id]), Most: slices.Max(ratios[id]),
		})
	}
	r.OK = true
	r.Goals = []Goal{}
	for _, g := range goals {
		var values []float64
		if g.value != nil {
			values = g.value(*r)
		}
		for _, id := range g.pairs {
			if v := ratios[id]; len(values) == 0 || len(v) > 0 && cmp.Less(median(v), median(values)) {
				values = v
			}
		}
		if len(values) == 0 {
			continue // was not measured
		}
		got := g.Goal
		got.Value, got.Least, got.Most = median(values), slices.Min(values), slices.Max(values)
		got.OK = got.met(got.Must)
		r.OK = r.OK && got.OK
		r.Goals = append(r.Goals, got)
	}
}
