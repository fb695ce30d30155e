package proxy

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are contract 3's. A nil *metrics counts nothing.
type metrics struct {
	issued      *prometheus.CounterVec
	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	validations *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	if reg == nil {
		return nil, nil
	}
	m := &metrics{
		issued: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "execution_tokens_issued_total", Help: "Execution tokens issued.",
		}, []string{"service"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "execution_proxy_requests_total", Help: "Requests to the execution proxy by the status of the answer; 499: the client went away first.",
		}, []string{"service", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "execution_proxy_duration_seconds", Help: "Time from a proxied request to the end of its answer.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900},
		}, []string{"service"}),
		validations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "execution_token_validations_total", Help: "Checks of execution tokens: valid, missing, malformed, signature, expired, revoked, service, binding, exhausted.",
		}, []string{"result"}),
	}
	for _, c := range []prometheus.Collector{m.issued, m.requests, m.duration, m.validations} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) tokenIssued(service string) {
	if m != nil {
		m.issued.WithLabelValues(service).Inc()
	}
}

func (m *metrics) validated(result string) {
	if m != nil {
		m.validations.WithLabelValues(result).Inc()
	}
}

// answered counts a request. Services that are not configured share a label: strangers choose their names.
func (m *metrics) answered(s *service, status int, took time.Duration) {
	if m == nil {
		return
	}
	name := "unknown"
	if s != nil {
		name = s.Name
	}
	m.requests.WithLabelValues(name, strconv.Itoa(status)).Inc()
	if s != nil && took > 0 {
		m.duration.WithLabelValues(name).Observe(took.Seconds())
	}
}
