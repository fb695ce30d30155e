package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
)

func newMetrics(iso *isolation) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sandbox_ready_sandboxes", Help: "Sandboxes that wait for a session.",
		}, iso.ready),
	)
	return registry
}

// showShares adds a pool that callers share to the metrics. It counts the operator separately.
func (a *app) showShares(resource string, pool *share.Pool) {
	labels := prometheus.Labels{"resource": resource}
	used := func(caller string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sandbox_share_used", Help: "How much of a shared resource callers hold: the operator (local), all others.",
			ConstLabels: prometheus.Labels{"resource": resource, "caller": caller},
		}, func() float64 { return float64(value()) })
	}
	count := func(name, help string, value func(share.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(pool.Stats())) })
	}
	local := func() int64 { return pool.Held(session.Local.ID) }
	a.metrics.MustRegister(
		used("local", local),
		used("others", func() int64 { return max(pool.Stats().Used-local(), 0) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sandbox_share_capacity", Help: "The size of a shared resource.", ConstLabels: labels,
		}, func() float64 { return float64(pool.Stats().Capacity) }),
		count("sandbox_share_evictions_total", "How often a caller lost something to another caller.", func(s share.Stats) int64 { return s.Evicted }),
		count("sandbox_share_refusals_total", "Requests that found no room.", func(s share.Stats) int64 { return s.Refused }),
	)
}
