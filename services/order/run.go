package order

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

// consumerName is whose inbox the answers of inventory are recorded in. It is
// part of the data: another name would handle every kept message again.
const consumerName = "order.inventory-events"

// service is everything a request or a message needs.
type service struct {
	Config
	log      *slog.Logger
	db       *pgxpool.Pool
	numbers  *numbers
	together *together

	relay     *outbox.Relay     // sends what is in the outbox,
	publisher *rabbit.Publisher // by way of this
	consumer  *rabbit.Consumer  // takes the answers of inventory
	audit     *rabbit.Audit

	observe steps.Hook
	ring    *steps.Ring
	faults  *faults.Set // nil unless they were asked for
	metrics *metrics
}

// Run serves the order API, sends the orders' events and applies what inventory
// answers, until ctx is done; it then finishes the requests and messages in hand
// within 20 seconds and returns nil. It waits for a database, a schema and a
// broker that are not there yet, and says so in /readyz and the log. An error
// means that it cannot work as it is set up.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if cfg.Listener == nil {
		cfg.Listener, err = net.Listen("tcp", cfg.HTTPAddr)
		if err != nil {
			return fmt.Errorf("--http ($ORDER_HTTP): %w", err)
		}
	}
	db, err := pgxpool.NewWithConfig(ctx, cfg.poolConfig())
	if err != nil {
		return errors.Join(fmt.Errorf("open database pool: %w", err), cfg.Listener.Close())
	}
	defer closePool(db)

	s := newService(cfg, db)
	s.log.Info("order service started", "http", cfg.Listener.Addr().String())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.serve(ctx, cfg.Listener) })
	g.Go(func() error {
		if !s.waitForSchema(ctx) {
			return nil
		}
		return s.work(ctx)
	})
	err = g.Wait()
	s.log.Info("order service stopped")
	return err
}

// closePool closes db, which takes long when the database does not answer any
// more: connections then wait for their goodbye.
func closePool(db *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() { defer close(closed); db.Close() }()
	select {
	case <-closed:
	case <-time.After(time.Second): // the process is about to end, and they with it
	}
}

// newService puts the parts together and starts none of them.
func newService(cfg Config, db *pgxpool.Pool) *service {
	s := &service{
		Config: cfg, log: cfg.Logger, db: db,
		numbers: newNumbers(db, cfg.NumberBlock), together: newTogether(db, cfg.RequestTimeout),
		ring: steps.New(0),
	}
	s.observe = s.ring.Observe
	if cfg.Faults {
		s.faults = faults.New(s.log)
		s.observe = steps.Chain(s.ring.Observe, s.faults.Observe)
	}
	s.publisher = &rabbit.Publisher{
		URL: cfg.AMQPURL, Exchange: events.OrderExchange, AppID: "order",
		Observe: s.observe, Logger: s.log,
	}
	s.relay = &outbox.Relay{
		DB: db, Publisher: s.publisher, Instance: "order",
		Lease: cfg.Lease, Poll: cfg.Poll, MaxAge: cfg.MaxEventAge, Ordered: cfg.Ordered,
		Observe: s.observe, Logger: s.log,
	}
	queue := rabbit.Queue{
		Name: "order.inventory-events", Owner: "order", Source: events.InventoryExchange,
		Keys: []string{events.InventoryReserved, events.InventoryRejected},
		Type: cfg.QueueType, RetryTTL: cfg.RetryTTL,
	}
	s.consumer = &rabbit.Consumer{
		URL: cfg.AMQPURL, Queue: queue, Prefetch: cfg.Prefetch, Batch: cfg.Batch,
		Handle:   s.applyAnswers,
		Suspects: inbox.Suspects{DB: db, Consumer: consumerName},
		Observe:  s.observe, Logger: s.log,
	}
	s.audit = &rabbit.Audit{
		ManagementURL: cfg.ManagementURL, AMQPURL: cfg.AMQPURL,
		Bindings: append(queue.Bindings(), subscriptions...),
		Interval: cfg.AuditEvery, Repair: s.repair, Logger: s.log,
	}
	s.metrics = newMetrics(s)
	return s
}

// subscriptions are the bindings of others that the orders' events must not be
// without. A confirmed mandatory message proves that some queue took it, not
// that this one did.
var subscriptions = []rabbit.Binding{
	{Exchange: events.OrderExchange, Queue: "inventory.order-events", Key: events.OrderCreated},
	{Exchange: events.OrderExchange, Queue: "inventory.order-events", Key: events.OrderCancelled},
}

// repair declares the consumer's topology anew when a part of it is missing.
// What belongs to others is theirs to repair.
func (s *service) repair(missing error) {
	for _, b := range s.audit.State().Missing {
		if b.Queue == s.consumer.Queue.Name {
			s.consumer.Reset(missing)
			return
		}
	}
}

// work does everything but HTTP until ctx is done.
func (s *service) work(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.relayAndPublish(ctx) })
	g.Go(func() error { return s.consumer.Run(ctx) })
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
	maxHeaderBytes    = 64 << 10
	// Shutdown waits this long for requests in hand. It is more than any of them
	// may take by the limits above and RequestTimeout, and less than the 20
	// seconds that the whole service has.
	shutdownTimeout = 18 * time.Second
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
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // clients that hang up
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
