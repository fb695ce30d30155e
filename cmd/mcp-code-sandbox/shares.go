package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
)

// showShares adds the numbers of what callers share to the metrics, the operator's apart from everybody else's.
func (a *app) showShares(resource string, pool *share.Pool) {
	labels := prometheus.Labels{"resource": resource}
	used := func(caller string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sandbox_share_used", Help: "What callers hold of something shared: the operator (local), all others.",
			ConstLabels: prometheus.Labels{"resource": resource, "caller": caller},
		}, func() float64 { return float64(value()) })
	}
	count := func(name, help string, value func(share.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(pool.Stats())) })
	}
	local := func() int64 { return pool.Held(session.Local.ID) }
	a.registry.MustRegister(
		used("local", local),
		used("others", func() int64 { return max(pool.Stats().Used-local(), 0) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sandbox_share_capacity", Help: "How much there is of something shared.", ConstLabels: labels,
		}, func() float64 { return float64(pool.Stats().Capacity) }),
		count("sandbox_share_evictions_total", "What was taken from a caller for another.", func(s share.Stats) int64 { return s.Evicted }),
		count("sandbox_share_refusals_total", "Requests that found no room.", func(s share.Stats) int64 { return s.Refused }),
	)
}
