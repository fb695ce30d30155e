package executor

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mcp-code-sandbox/internal/session"
)

// Metrics counts what the executor does. A nil *Metrics counts nothing.
type Metrics struct {
	runs     *prometheus.CounterVec
	duration *prometheus.HistogramVec
	output   prometheus.Counter
	uploads  prometheus.Counter
	refusals *prometheus.CounterVec
	stats    atomic.Pointer[func() session.Stats]
}

// NewMetrics registers the executor's metrics with reg. It panics if reg has them already.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandbox_runs_total",
			Help: "Runs by runner and outcome: success, failure (the program's own), a cause such as timeout, refused (sandbox_refusals_total says why), or error (the server's).",
		}, []string{"runner", "outcome", "caller"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandbox_refusals_total", Help: "Runs and uploads that were refused, by the code of the refusal, such as quota_exceeded or max_sessions.",
		}, []string{"reason", "caller"}),
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
	reg.MustRegister(m.runs, m.duration, m.output, m.uploads, m.refusals, sessionMetrics{m})
	return m
}

// kindOf returns the label of a caller. Metrics distinguish only the operator from all others.
func kindOf(caller session.Caller) string {
	if caller == session.Local {
		return "local"
	}
	return "others"
}

// sessionMetrics collects the session manager's numbers, by kind of caller.
type sessionMetrics struct{ *Metrics }

var (
	liveSandboxes = sessionMetric("sandbox_live_sandboxes", "Sandboxes that are starting, live or ending.")
	sessions      = sessionMetric("sandbox_sessions", "Sessions that are in use or have a sandbox.")
	liveSessions  = sessionMetric("sandbox_live_sessions", "Sessions that have a sandbox.")
	interpreters  = sessionMetric("sandbox_interpreters", "Interpreters that stay alive between runs.")
	activeRuns    = sessionMetric("sandbox_active_runs", "Active runs.")
	waitingRuns   = sessionMetric("sandbox_waiting_runs", "Runs that wait until their session may have a sandbox.")
	evictions     = sessionMetric("sandbox_session_evictions_total", "Idle sessions of these callers whose sandboxes were ended to make room.")
	preemptions   = sessionMetric("sandbox_session_preemptions_total", "Sessions of these callers whose runs were stopped to make room for another caller.")
	refusals      = sessionMetric("sandbox_session_refusals_total", "Runs of these callers that were refused with max_sessions.")
)

func sessionMetric(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"caller"}, nil)
}

// Describe implements prometheus.Collector.
func (m sessionMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector. All its numbers are from one moment.
func (m sessionMetrics) Collect(ch chan<- prometheus.Metric) {
	var st session.Stats
	if stats := m.stats.Load(); stats != nil {
		st = (*stats)()
	}
	for kind, c := range map[string]session.CallerStats{"local": st.Local, "others": st.Others} {
		for desc, n := range map[*prometheus.Desc]int{
			liveSandboxes: c.LiveSandboxes, sessions: c.Sessions, liveSessions: c.LiveSessions,
			interpreters: c.Interpreters, activeRuns: c.ActiveRuns, waitingRuns: c.Waiting,
		} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), kind)
		}
		for desc, n := range map[*prometheus.Desc]uint64{evictions: c.Evictions, preemptions: c.Preemptions, refusals: c.Refusals} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), kind)
		}
	}
}

func (m *Metrics) observe(stats func() session.Stats) {
	if m != nil {
		m.stats.Store(&stats)
	}
}

func (m *Metrics) ran(caller session.Caller, runner, outcome string, d time.Duration, outputBytes int64) {
	if m == nil {
		return
	}
	m.runs.WithLabelValues(runner, outcome, kindOf(caller)).Inc()
	m.duration.WithLabelValues(runner).Observe(d.Seconds())
	m.output.Add(float64(outputBytes))
}

// refused counts a refusal. It reports false for a failure of the server or its backend.
func (m *Metrics) refused(caller session.Caller, err error) bool {
	code := codeOf(err)
	if code == "" || code == CodeBackendUnavailable {
		return false
	}
	if m != nil {
		m.refusals.WithLabelValues(code, kindOf(caller)).Inc()
	}
	return true
}

func (m *Metrics) uploaded(bytes int64) {
	if m != nil {
		m.uploads.Add(float64(bytes))
	}
}
