package inventory

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/baton/shared/outbox"
	"example.com/baton/shared/rabbit"
)

// metrics is what /metrics shows. It has a registry of its own, so that several
// services can live in one process.
type metrics struct {
	registry   *prometheus.Registry
	events     *prometheus.CounterVec
	duplicates prometheus.Counter
}

func newMetrics(s *service) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "baton_inventory_events_total", Help: "Events of orders by what they did to their order.",
		}, []string{"outcome"}),
		duplicates: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "baton_inbox_duplicates_total", Help: "Messages that the inbox knew already and that changed nothing.",
		}),
	}
	for _, o := range []outcome{reserved, rejected, released, cancelledFirst, repeated} {
		m.events.WithLabelValues(string(o)) // a series that is zero is better than one that is not there
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.events, m.duplicates, outboxCollector{s.db},
	)
	m.registerCounters(s)
	m.registerGauges(s)
	return m
}

func (m *metrics) registerCounters(s *service) {
	relay, consumed := s.relay.Counts(), s.queues.sum
	outcome := func(o string) prometheus.Labels { return prometheus.Labels{"outcome": o} }
	for _, c := range []struct {
		name, help string
		labels     prometheus.Labels
		read       func() int64
	}{
		{"baton_relay_claimed_total", "Messages claimed from the outbox.", nil, relay.Claimed.Load},
		{"baton_relay_claims_total", "Claims that were answered, those that found nothing too.", nil, relay.Claims.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcome("published"), relay.Published.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcome("unroutable"), relay.Unroutable.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcome("refused"), relay.Refused.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcome("unknown"), relay.Unknown.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcome("given_back"), relay.GivenBack.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcome("misconfigured"), relay.Misconfigured.Load},
		{"baton_relay_lease_lost_total", "Outcomes that came after another relay had claimed the row.", nil, relay.LeaseLost.Load},
		{"baton_relay_failed_total", "Messages given up and kept.", nil, relay.Failed.Load},
		{"baton_consumer_received_total", "Deliveries received.", nil, consumed(func(c *rabbit.ConsumerCounts) int64 { return c.Received.Load() })},
		{"baton_consumer_redelivered_total", "Deliveries that had been delivered before.", nil, consumed(func(c *rabbit.ConsumerCounts) int64 { return c.Redelivered.Load() })},
		{"baton_consumer_acked_total", "Deliveries acknowledged.", nil, consumed(func(c *rabbit.ConsumerCounts) int64 { return c.Acked.Load() })},
		{"baton_consumer_retried_total", "Deliveries sent round the retry queue.", nil, consumed(func(c *rabbit.ConsumerCounts) int64 { return c.Retried.Load() })},
		{"baton_consumer_dead_lettered_total", "Deliveries sent to the final dead-letter queue.", nil, consumed(func(c *rabbit.ConsumerCounts) int64 { return c.DeadLettered.Load() })},
		{"baton_database_waits_total", "Times that a connection had to be waited for.", nil, func() int64 { return s.db.Stat().EmptyAcquireCount() }},
	} {
		m.registry.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: c.name, Help: c.help, ConstLabels: c.labels},
			func() float64 { return float64(c.read()) }))
	}
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "baton_relay_claim_seconds_total", Help: "Time that claims took.",
	}, func() float64 { return time.Duration(relay.ClaimTime.Load()).Seconds() }))
}

func (m *metrics) registerGauges(s *service) {
	held := s.queues.sum(func(c *rabbit.ConsumerCounts) int64 { return c.Held.Load() })
	for _, g := range []struct {
		name, help string
		read       func() float64
	}{
		{"baton_consumer_held", "Deliveries held until an outage is over.", func() float64 { return float64(held()) }},
		{"baton_consumer_connected", "1 if messages are consumed, from each queue.", func() float64 { return oneIf(s.queues.state().Connected) }},
		{"baton_publisher_connected", "1 if messages can be sent.", func() float64 { return oneIf(s.publisher.State().Connected) }},
		{"baton_bindings_missing", "Bindings that must exist and do not, as of the last audit.", func() float64 { return float64(len(s.audit.State().Missing)) }},
		{"baton_bindings_checked", "1 if the last audit could look at the bindings.", func() float64 { return oneIf(s.audit.State().Checked) }},
		{"baton_database_connections_in_use", "Connections of the pool in use.", func() float64 { return float64(s.db.Stat().AcquiredConns()) }},
		{"baton_database_connections", "Connections of the pool.", func() float64 { return float64(s.db.Stat().TotalConns()) }},
		{"baton_database_connections_max", "The most connections the pool may have.", func() float64 { return float64(s.db.Stat().MaxConns()) }},
	} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help}, g.read))
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// booked counts what an event did.
func (m *metrics) booked(o outcome) {
	if o == duplicate {
		m.duplicates.Inc()
		return
	}
	m.events.WithLabelValues(string(o)).Inc()
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// outboxCollector reads the outbox when somebody looks.
type outboxCollector struct{ db outbox.DB }

var (
	outboxRows    = prometheus.NewDesc("baton_outbox_rows", "Rows of the outbox that are not published.", []string{"status"}, nil)
	outboxOldest  = prometheus.NewDesc("baton_outbox_oldest_pending_seconds", "Age of the oldest message that waits.", nil, nil)
	outboxStuck   = prometheus.NewDesc("baton_outbox_stuck_rows", "Claimed rows whose lease has run out.", nil, nil)
	outboxBlocked = prometheus.NewDesc("baton_outbox_blocked_aggregates", "Aggregates that a failed message holds back from an ordered relay.", nil, nil)
	databaseUp    = prometheus.NewDesc("baton_database_up", "1 if the outbox could be read.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (outboxCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{outboxRows, outboxOldest, outboxStuck, outboxBlocked, databaseUp} {
		descs <- d
	}
}

// Collect implements [prometheus.Collector]. While the database is away its
// numbers are absent rather than wrong.
func (c outboxCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	stats, err := outbox.ReadStats(ctx, c.db)
	gauge(databaseUp, oneIf(err == nil))
	if err != nil {
		return
	}
	gauge(outboxRows, float64(stats.Pending), "Pending")
	gauge(outboxRows, float64(stats.Processing), "Processing")
	gauge(outboxRows, float64(stats.Failed), "Failed")
	gauge(outboxOldest, stats.OldestPending.Seconds())
	gauge(outboxStuck, float64(stats.Stuck))
	gauge(outboxBlocked, float64(stats.Blocked))
}
