package inventory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/steps"
	"example.com/baton/shared/events"
	"example.com/baton/shared/inbox"
	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// service is everything a request or a delivery needs.
type service struct {
	Config
	log *slog.Logger
	db  *pgxpool.Pool

	queues    queues            // the orders' events
	relay     *outbox.Relay     // sends the answers,
	publisher *rabbit.Publisher // by way of this
	audit     *rabbit.Audit

	ring    *steps.Ring
	faults  *faults.Set // nil unless they were asked for
	metrics *metrics
}

// Run reserves stock for what the orders' events ask for, answers them, and
// serves what can be looked at over HTTP, until ctx is done; it then finishes
// the deliveries and requests in hand within 20 seconds and returns nil. It
// waits for a database, a schema and a broker that are not there yet, and says
// so in /readyz and the log. An error means that it cannot work as it is set up.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if cfg.Listener == nil {
		cfg.Listener, err = net.Listen("tcp", cfg.HTTPAddr)
		if err != nil {
			return fmt.Errorf("--http ($INVENTORY_HTTP): %w", err)
		}
	}
	db, err := pgxpool.NewWithConfig(ctx, cfg.poolConfig())
	if err != nil {
		return errors.Join(fmt.Errorf("open database pool: %w", err), cfg.Listener.Close())
	}
	defer db.Close()

	s := newService(cfg, db)
	s.log.Info("inventory service started", "http", cfg.Listener.Addr().String())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.serve(ctx, cfg.Listener) })
	g.Go(func() error {
		if !s.waitForSchema(ctx) {
			return nil
		}
		return s.work(ctx)
	})
	err = g.Wait()
	s.log.Info("inventory service stopped")
	return err
}

// Consume is the consumer of [Run] by itself, until ctx is done: it books and
// stores the answers, and nobody sends them. It is there to be measured.
func Consume(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	db, err := pgxpool.NewWithConfig(ctx, cfg.poolConfig())
	if err != nil {
		return fmt.Errorf("open database pool: %w", err)
	}
	defer db.Close()
	return newService(cfg, db).queues.consume(ctx)
}

// newService puts the parts together and starts none of them.
func newService(cfg Config, db *pgxpool.Pool) *service {
	s := &service{Config: cfg, log: cfg.Logger, db: db, ring: steps.New(0)}
	observe := s.ring.Observe
	if cfg.Faults {
		s.faults = faults.New(s.log)
		observe = steps.Chain(s.ring.Observe, s.faults.Observe)
	}
	s.publisher = &rabbit.Publisher{
		URL: cfg.AMQPURL, Exchange: events.InventoryExchange, AppID: "inventory",
		Observe: observe, Logger: s.log,
	}
	s.relay = &outbox.Relay{
		DB: db, Publisher: s.publisher, Instance: "inventory",
		Lease: cfg.Lease, Poll: cfg.Poll, MaxAge: cfg.MaxEventAge, Ordered: cfg.Ordered,
		Observe: observe, Logger: s.log,
	}
	queue := rabbit.Queue{
		Name: "inventory.order-events", Owner: "inventory", Source: events.OrderExchange,
		Keys: []string{events.OrderCreated, events.OrderCancelled},
		Type: cfg.QueueType, RetryTTL: cfg.RetryTTL,
	}
	h := &handler{
		db: db, maxAge: cfg.MaxEventAge,
		wake:  s.relay.Wake,
		count: func(o outcome) { s.metrics.booked(o) },
	}
	s.queues = queues{queue: queue, number: cfg.Queues, url: cfg.AMQPURL, consumer: func(q rabbit.Queue) *rabbit.Consumer {
		return &rabbit.Consumer{
			URL: cfg.AMQPURL, Queue: q, Prefetch: cfg.Prefetch, Batch: cfg.Batch,
			Handle:   h.Handle,
			Suspects: inbox.Suspects{DB: db, Consumer: consumerName},
			Observe:  observe, Logger: s.log,
		}
	}}
	var bindings []rabbit.Binding
	for _, q := range queue.Split(cfg.Queues) {
		s.queues.add(q)
		bindings = append(bindings, q.Bindings()...)
	}
	s.audit = &rabbit.Audit{
		ManagementURL: cfg.ManagementURL, AMQPURL: cfg.AMQPURL,
		Bindings: append(bindings, subscriptions...), Unwanted: queue.Unwanted(cfg.Queues),
		Interval: cfg.AuditEvery, Repair: s.repair, Logger: s.log,
	}
	s.metrics = newMetrics(s)
	return s
}

// subscriptions are the bindings of others that the answers must not be
// without. A confirmed mandatory message proves that some queue took it, not
// that this one did.
var subscriptions = []rabbit.Binding{
	{Exchange: events.InventoryExchange, Queue: "order.inventory-events", Key: events.InventoryReserved},
	{Exchange: events.InventoryExchange, Queue: "order.inventory-events", Key: events.InventoryRejected},
}

// repair declares the consumers' topology anew when a part of it is missing.
// What belongs to others is theirs to repair.
func (s *service) repair(missing error) {
	for _, b := range s.audit.State().Missing {
		if b.Queue != subscriptions[0].Queue {
			for _, c := range s.queues.all() {
				c.Reset(missing)
			}
			return
		}
	}
}

// work does everything but HTTP until ctx is done.
func (s *service) work(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.queues.consume(ctx) })
	g.Go(func() error { return s.relayAndPublish(ctx) })
	g.Go(func() error { return s.audit.Run(ctx) })
	g.Go(func() error { s.prune(ctx); return nil })
	return g.Wait()
}

// relayAndPublish runs the relay until ctx is done, and its publisher until the
// relay is: what is in flight then still gets its outcome.
func (s *service) relayAndPublish(ctx context.Context) error {
	publishing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var publisher errgroup.Group
	publisher.Go(func() error { return s.publisher.Run(publishing) })
	err := s.relay.Run(ctx)
	stop()
	return errors.Join(err, publisher.Wait())
}

// The limits of the HTTP server. A client that is slower than these is cut off.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second // headers and body
	writeTimeout      = 30 * time.Second // from the end of the headers to the end of the answer
	idleTimeout       = 60 * time.Second // between requests of one connection
	maxHeaderBytes    = 16 << 10
	requestTimeout    = 5 * time.Second // the database work for one request
	// Shutdown waits this long for requests in hand.
	shutdownTimeout = 10 * time.Second
)

// serve answers requests from ln until ctx is done and those in hand are
// finished.
func (s *service) serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	srv.RegisterOnShutdown(s.ring.Close) // streams would hold it up
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// Returns as soon as Shutdown begins, so it is not what we wait for then.
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := srv.Shutdown(deadline); err != nil {
			s.log.Warn("requests were cut off at the end of the shutdown", "err", err)
			return srv.Close()
		}
		return nil
	})
	return g.Wait()
}
