package proxy

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of contract 3.
type metrics struct {
	issued, requests, validations *prometheus.CounterVec
	duration                      *prometheus.HistogramVec
}

// newMetrics registers the metrics, unless reg is nil.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		issued: counter("execution_tokens_issued_total", "Execution tokens issued.", "service"),
		requests: counter("execution_proxy_requests_total",
			"Requests to the execution proxy by status; 499: the client left before the answer.", "service", "status"),
		validations: counter("execution_token_validations_total", "Checks of execution tokens: "+
			"valid, missing, malformed, signature, expired, revoked, service, binding, exhausted.", "result"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "execution_proxy_duration_seconds", Help: "Time from a proxied request to the end of its answer.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900},
		}, []string{"service"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.issued, m.requests, m.duration, m.validations} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) validated(result string) { m.validations.WithLabelValues(result).Inc() }

// answered counts a request. Unknown services share one label, since clients choose their names.
func (m *metrics) answered(s *service, status int, took time.Duration) {
	name := "unknown"
	if s != nil {
		name = s.Name
	}
	m.requests.WithLabelValues(name, strconv.Itoa(status)).Inc()
	if s != nil && took > 0 {
		m.duration.WithLabelValues(name).Observe(took.Seconds())
	}
}
