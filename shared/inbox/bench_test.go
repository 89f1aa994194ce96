package inbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/baton/internal/testenv"
	"example.com/baton/shared/inbox"
)

// BenchmarkHandleBatch handles messages with nothing to do: what the inbox costs
// each. An operation is one message.
func BenchmarkHandleBatch(b *testing.B) {
	for _, batch := range []int{1, 250} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			db := testenv.Schema(b)
			if _, err := db.Exec(b.Context(), inbox.Schema); err != nil {
				b.Fatal(err)
			}
			nothing := func(pgx.Tx, []string) error { return nil }
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += batch {
				b.StopTimer()
				ids := make([]string, min(batch, b.N-done))
				for i := range ids {
					ids[i] = fmt.Sprintf("event-%08d", done+i)
				}
				b.StartTimer()
				for _, err := range inbox.HandleBatch(b.Context(), db, "bench", ids, nothing) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			testenv.ReportRate(b, "msg")
		})
	}
}
