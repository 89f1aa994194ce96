package order

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/baton/shared/outbox"
)

// metrics is what /metrics shows. It has a registry of its own, so that several
// services can live in one process.
type metrics struct {
	registry   *prometheus.Registry
	requests   *prometheus.CounterVec
	latency    *prometheus.HistogramVec
	inHand     prometheus.Gauge
	duplicates prometheus.Counter
	answers    *prometheus.CounterVec
}

func newMetrics(s *service) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "baton_http_requests_total", Help: "HTTP requests answered.",
		}, []string{"method", "route", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "baton_http_request_seconds", Help: "Time to answer an HTTP request.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"method", "route"}),
		inHand: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "baton_http_requests_in_hand", Help: "HTTP requests not answered yet, this one too.",
		}),
		duplicates: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "baton_inbox_duplicates_total", Help: "Messages that the inbox knew already and that changed nothing.",
		}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "baton_order_answers_total", Help: "Answers of inventory by what they did to their order.",
		}, []string{"type", "effect"}),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.requests, m.latency, m.inHand, m.duplicates, m.answers,
		outboxCollector{s.db},
	)
	relay, consumer := s.relay.Counts(), s.consumer.Counts()
	for _, c := range []struct {
		name, help string
		labels     prometheus.Labels
		read       func() int64
	}{
		{"baton_relay_claimed_total", "Messages claimed from the outbox.", nil, relay.Claimed.Load},
		{"baton_relay_claims_total", "Claims that were answered, those that found nothing too.", nil, relay.Claims.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcomeLabel("published"), relay.Published.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcomeLabel("unroutable"), relay.Unroutable.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcomeLabel("refused"), relay.Refused.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcomeLabel("unknown"), relay.Unknown.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcomeLabel("given_back"), relay.GivenBack.Load},
		{"baton_relay_outcomes_total", "What became of messages sent.", outcomeLabel("misconfigured"), relay.Misconfigured.Load},
		{"baton_relay_lease_lost_total", "Outcomes that came after another relay had claimed the row.", nil, relay.LeaseLost.Load},
		{"baton_relay_failed_total", "Messages given up and kept.", nil, relay.Failed.Load},
		{"baton_consumer_received_total", "Deliveries received.", nil, consumer.Received.Load},
		{"baton_consumer_redelivered_total", "Deliveries that had been delivered before.", nil, consumer.Redelivered.Load},
		{"baton_consumer_acked_total", "Deliveries acknowledged.", nil, consumer.Acked.Load},
		{"baton_consumer_retried_total", "Deliveries sent round the retry queue.", nil, consumer.Retried.Load},
		{"baton_consumer_dead_lettered_total", "Deliveries sent to the final dead-letter queue.", nil, consumer.DeadLettered.Load},
	} {
		m.registry.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: c.name, Help: c.help, ConstLabels: c.labels},
			func() float64 { return float64(c.read()) }))
	}
	for _, g := range []struct {
		name, help string
		read       func() float64
	}{
		{"baton_consumer_held", "Deliveries held until an outage is over.", func() float64 { return float64(consumer.Held.Load()) }},
		{"baton_bindings_missing", "Bindings that must exist and do not, as of the last audit.", func() float64 { return float64(len(s.audit.State().Missing)) }},
		{"baton_bindings_checked", "1 if the last audit could look at the bindings.", func() float64 { return oneIf(s.audit.State().Checked) }},
		{"baton_publisher_connected", "1 if messages can be sent.", func() float64 { return oneIf(s.publisher.State().Connected) }},
		{"baton_consumer_connected", "1 if messages are consumed.", func() float64 { return oneIf(s.consumer.State().Connected) }},
		{"baton_database_connections_in_use", "Connections of the pool in use.", func() float64 { return float64(s.db.Stat().AcquiredConns()) }},
		{"baton_database_connections", "Connections of the pool.", func() float64 { return float64(s.db.Stat().TotalConns()) }},
		{"baton_database_connections_max", "The most connections the pool may have.", func() float64 { return float64(s.db.Stat().MaxConns()) }},
	} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help}, g.read))
	}
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "baton_database_waits_total", Help: "Times that a connection had to be waited for.",
	}, func() float64 { return float64(s.db.Stat().EmptyAcquireCount()) }))
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "baton_relay_claim_seconds_total", Help: "Time that claims took.",
	}, func() float64 { return time.Duration(relay.ClaimTime.Load()).Seconds() }))
	return m
}

func outcomeLabel(outcome string) prometheus.Labels { return prometheus.Labels{"outcome": outcome} }

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// measure counts requests and their time by route, not by path: a client must
// not be able to make up new series.
func (m *metrics) measure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		m.inHand.Inc()
		defer m.inHand.Dec()
		seen := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		next.ServeHTTP(seen, r)
		method, route := r.Method, chi.RouteContext(r.Context()).RoutePattern()
		switch method {
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		default:
			method = "other"
		}
		if route == "" || seen.Status() == http.StatusNotFound && route == "/*" {
			route = "none"
		}
		m.requests.WithLabelValues(method, route, strconv.Itoa(max(seen.Status(), http.StatusOK))).Inc()
		m.latency.WithLabelValues(method, route).Observe(time.Since(start).Seconds())
	})
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
