package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"example.com/baton/shared/outbox"
)

// River is a job queue and no relay: a job per message makes it one.

// The client of River's README.
var riverDocumented = setup{
	modules:   riverModules,
	guarantee: riverGuarantee,
	settings:  "100 workers, fetch cooldown 100 ms (the default); one channel for all, deferred confirms, mandatory",
	open:      openRiver(100, 0),
}

var riverTuned = setup{
	modules:   riverModules,
	guarantee: riverGuarantee,
	settings:  "1000 workers, fetch cooldown 2 ms; one channel for all, deferred confirms, mandatory",
	open:      openRiver(1000, 2*time.Millisecond),
}

var riverModules = []string{
	"github.com/riverqueue/river", "github.com/riverqueue/river/riverdriver/riverpgxv5", "github.com/rabbitmq/amqp091-go",
}

const riverGuarantee = "at least once: a job is completed after the broker has confirmed its persistent message and not returned it; " +
	"no order among messages, not even of one aggregate"

// event is the job of sending a message.
type event struct {
	ID         string            `json:"id"`
	Type       string            `json:"type"`
	OccurredAt time.Time         `json:"occurredAt"`
	Headers    map[string]string `json:"headers"`
	Payload    json.RawMessage   `json:"payload"`
}

func (event) Kind() string { return "event" }

type sender struct {
	river.WorkerDefaults[event]
	publisher *publisher
	meter     *meter
}

func (s *sender) Work(ctx context.Context, job *river.Job[event]) error {
	e := job.Args
	m := outbox.Message{ID: e.ID, Type: e.Type, OccurredAt: e.OccurredAt, Headers: e.Headers, Payload: e.Payload}
	if err := s.publisher.publish(ctx, m); err != nil {
		s.meter.fail(err)
		return err
	}
	s.meter.add()
	return nil
}

func openRiver(workers int, cooldown time.Duration) func(context.Context, *bed) (worker, error) {
	return func(ctx context.Context, b *bed) (worker, error) {
		driver := riverpgxv5.New(b.db)
		migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: b.log})
		if err != nil {
			return nil, err
		}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return nil, err
		}
		p, err := newPublisher(b.address.amqp, workers)
		if err != nil {
			return nil, err
		}
		bundle := river.NewWorkers()
		river.AddWorker(bundle, &sender{publisher: p, meter: b.meter})
		client, err := river.NewClient(driver, &river.Config{
			Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
			Workers:       bundle,
			FetchCooldown: cooldown,
			Logger:        b.log,
		})
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		return &riverWorker{bed: b, client: client, publisher: p}, nil
	}
}

type riverWorker struct {
	*bed
	client    *river.Client[pgx.Tx]
	publisher *publisher
}

func (w *riverWorker) fill(ctx context.Context, msgs []outbox.Message) error {
	for chunk := range slices.Chunk(msgs, 5000) {
		jobs := make([]river.InsertManyParams, len(chunk))
		for i, m := range chunk {
			jobs[i].Args = event{ID: m.ID, Type: m.Type, OccurredAt: m.OccurredAt, Headers: m.Headers, Payload: m.Payload}
		}
		if _, err := w.client.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}

func (w *riverWorker) run(ctx context.Context) error {
	lasting := context.WithoutCancel(ctx) // Stop lets it finish what is in hand
	if err := w.client.Start(lasting); err != nil {
		return errors.Join(err, w.publisher.close())
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(lasting, 30*time.Second)
	defer cancel()
	return errors.Join(w.client.Stop(stopping), w.publisher.close())
}

func (w *riverWorker) verify(ctx context.Context, handled int) error {
	return w.queue.holds(ctx, handled, handled)
}
