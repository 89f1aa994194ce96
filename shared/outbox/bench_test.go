package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/baton/internal/samples"
	"example.com/baton/internal/testenv"
	"example.com/baton/shared/outbox"
)

// An operation is one message in all of these, however many go into a
// transaction.

func BenchmarkEnqueue(b *testing.B) {
	for _, batch := range []int{1, 100} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			db := emptyOutbox(b)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += batch {
				b.StopTimer()
				msgs := samples.Events(min(batch, b.N-done), fmt.Sprint(done))
				b.StartTimer()
				enqueueSamples(b, db, msgs)
			}
			testenv.ReportRate(b, "msg")
		})
	}
}

// BenchmarkRelay takes messages from the table to a publisher that confirms them
// at once: what the relay and its statements cost, without a broker.
func BenchmarkRelay(b *testing.B) {
	db := emptyOutbox(b)
	const chunk = 1000
	for stored := 0; stored < b.N; stored += chunk {
		enqueueSamples(b, db, samples.Events(min(chunk, b.N-stored), fmt.Sprint(stored)))
	}
	if _, err := db.Exec(b.Context(), `vacuum analyze outbox_messages`); err != nil {
		b.Fatal(err)
	}
	settled, all := 0, make(chan struct{})
	end := sync.OnceFunc(func() { close(all) })
	relay := outbox.Relay{
		DB: db, Publisher: confirming{}, Logger: slog.New(slog.DiscardHandler),
		Observe: func(_ context.Context, step string, ids []string) error {
			if step == outbox.StepSettled { // of one goroutine
				if settled += len(ids); settled >= b.N {
					end()
				}
			}
			return nil
		},
	}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()

	b.ReportAllocs()
	b.ResetTimer()
	running.Go(func() {
		if err := relay.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	<-all
	b.StopTimer()
	testenv.ReportRate(b, "msg")
}

// confirming is a broker that takes everything in no time.
type confirming struct{}

func (confirming) Ready(ctx context.Context) error { return ctx.Err() }

func (confirming) Publish(_ context.Context, msgs []outbox.Message, settle func(int, error)) {
	for i := range msgs {
		settle(i, nil)
	}
}

func emptyOutbox(b *testing.B) *pgxpool.Pool {
	b.Helper()
	db := testenv.Schema(b)
	if _, err := db.Exec(b.Context(), outbox.Schema); err != nil {
		b.Fatal(err)
	}
	return db
}

func enqueueSamples(b *testing.B, db *pgxpool.Pool, msgs []outbox.Message) {
	b.Helper()
	err := pgx.BeginFunc(b.Context(), db, func(tx pgx.Tx) error { return outbox.Enqueue(b.Context(), tx, msgs...) })
	if err != nil {
		b.Fatal(err)
	}
}
