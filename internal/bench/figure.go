package bench

import (
	"fmt"
	"strings"
)

// The measures of the figure, in pixels.
const (
	panelWidth, panelHeight = 400, 220
	marginLeft, marginTop   = 56, 44
	plotWidth, plotHeight   = 310, 120
)

// lines are the costs that a panel shows.
var lines = []struct {
	name, color string
	of          func(Cost) float64
}{
	{"claim", "#b3372f", func(c Cost) float64 { return c.Claim }},
	{"POST", "#2f6fb3", func(c Cost) float64 { return c.Post }},
	{"handling", "#3a8a4d", func(c Cost) float64 { return c.Handling }},
}

// Figure is an SVG of cost against size: a panel for each kind of rows, all with
// the same scale of milliseconds.
func (r Report) Figure() string {
	var names []string
	series := map[string][]Cost{}
	most := 1.0
	for _, c := range r.Costs {
		if series[c.Series] == nil {
			names = append(names, c.Series)
		}
		series[c.Series] = append(series[c.Series], c)
		for _, l := range lines {
			most = max(most, l.of(c))
		}
	}
	var b strings.Builder
	const columns = 2
	rows := (len(names) + columns - 1) / columns
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12" fill="#333">`+"\n",
		columns*panelWidth, rows*panelHeight)
	b.WriteString("<title>Milliseconds of a claim, a POST and the handling of a batch, against the number of rows</title>\n")
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	for i, name := range names {
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", i%columns*panelWidth, i/columns*panelHeight)
		panel(&b, name, series[name], most)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func panel(b *strings.Builder, name string, costs []Cost, most float64) {
	size := float64(max(costs[len(costs)-1].Size, 1))
	x := func(c Cost) float64 { return marginLeft + plotWidth*float64(c.Size)/size }
	y := func(v float64) float64 { return marginTop + plotHeight*(1-v/most) }
	fmt.Fprintf(b, `<text x="%d" y="18" font-weight="bold">%s</text>`+"\n", marginLeft, name)
	for _, v := range []float64{0, most / 2, most} {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.1f ms</text>`+"\n",
			marginLeft, marginLeft+plotWidth, y(v), y(v), marginLeft-6, y(v)+4, v)
	}
	for _, c := range costs {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(c), marginTop+plotHeight+18, short(c.Size))
	}
	for i, l := range lines {
		var points []string
		for _, c := range costs {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(c), y(l.of(c))))
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), l.color)
		fmt.Fprintf(b, `<text x="%d" y="34" fill="%s">%s</text>`+"\n", marginLeft+i*70, l.color, l.name)
	}
}

// short writes a number of rows: 500k, 2M.
func short(n int) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%gM", float64(n)/1e6)
	case n >= 1000:
		return fmt.Sprintf("%gk", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}
