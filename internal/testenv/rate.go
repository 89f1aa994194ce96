package testenv

import "testing"

// ReportRate reports how many of what b.N counts were done in a second, as a
// metric of that name.
func ReportRate(b *testing.B, what string) {
	b.Helper()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), what+"/s")
}
