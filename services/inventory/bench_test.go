package inventory

import (
	"fmt"
	"testing"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/rabbit"
)

// BenchmarkHandle books new orders, 250 in a batch: inbox, locks, stock,
// reservations and answers. They are all for one sku, or for a thousand in turn. An
// operation is one order.
func BenchmarkHandle(b *testing.B) {
	const most = 250
	for _, skus := range []int{1, 1000} {
		b.Run(fmt.Sprintf("skus=%d", skus), func(b *testing.B) {
			s := newBench(b)
			s.exec(`insert into stock (sku, on_hand) select 'SKU-B' || n, 1000000000 from generate_series(0, 999) n`)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += most {
				b.StopTimer()
				batch := make([]rabbit.Delivery, min(most, b.N-done))
				for i := range batch {
					batch[i] = created(fmt.Sprintf("ORD-%08d", done+i), fmt.Sprintf("SKU-B%d×2", (done+i)%skus))
				}
				b.StartTimer()
				s.handle(batch...)
			}
			b.StopTimer()
			testenv.ReportRate(b, "orders")
			if s.seen[reserved] != b.N {
				b.Errorf("%d of %d orders were reserved", s.seen[reserved], b.N)
			}
		})
	}
}
