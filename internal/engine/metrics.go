package engine

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mcp-code-sandbox/internal/session"
)

// Metrics counts what the engine does. A nil *Metrics counts nothing.
type Metrics struct {
	runs     *prometheus.CounterVec
	duration *prometheus.HistogramVec
	output   prometheus.Counter
	uploads  prometheus.Counter
	stats    atomic.Pointer[func() session.Stats]
}

// NewMetrics registers the engine's metrics with reg. It panics if they are registered there already.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandbox_runs_total",
			Help: "Runs by runner and outcome: success, failure (the program's own), a cause such as timeout, or error (the server's).",
		}, []string{"runner", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sandbox_run_duration_seconds",
			Help:    "Time from the request to the program's end, the start of a sandbox included.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
		}, []string{"runner"}),
		output: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sandbox_output_bytes_total", Help: "Bytes that programs printed.",
		}),
		uploads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sandbox_upload_bytes_total", Help: "Bytes of uploaded files.",
		}),
	}
	reg.MustRegister(m.runs, m.duration, m.output, m.uploads,
		m.gauge("sandbox_live_sandboxes", "Sandboxes that are starting, live or ending.",
			func(s session.Stats) int { return s.LiveSandboxes }),
		m.gauge("sandbox_sessions", "Sessions that are in use or have a sandbox.",
			func(s session.Stats) int { return s.Sessions }),
		m.gauge("sandbox_active_runs", "Runs that are going.",
			func(s session.Stats) int { return s.ActiveRuns }))
	return m
}

func (m *Metrics) gauge(name, help string, value func(session.Stats) int) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		if stats := m.stats.Load(); stats != nil {
			return float64(value((*stats)()))
		}
		return 0
	})
}

func (m *Metrics) observe(stats func() session.Stats) {
	if m != nil {
		m.stats.Store(&stats)
	}
}

func (m *Metrics) ran(runner, outcome string, d time.Duration, outputBytes int64) {
	if m == nil {
		return
	}
	m.runs.WithLabelValues(runner, outcome).Inc()
	m.duration.WithLabelValues(runner).Observe(d.Seconds())
	m.output.Add(float64(outputBytes))
}

func (m *Metrics) uploaded(bytes int64) {
	if m != nil {
		m.uploads.Add(float64(bytes))
	}
}
