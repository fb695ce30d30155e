package packages

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests, downloaded *prometheus.CounterVec
	files                atomic.Int64 // downloaded
}

// newMetrics registers the metrics, unless reg is nil.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packages_requests_total",
			Help: "Requests of sandboxes to the package mirror by result: ok, or the code of the refusal."}, []string{"kind", "result"}),
		downloaded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packages_downloaded_files_total",
			Help: "Files that the package mirror downloaded from an index."}, []string{"kind"}),
	}
	if reg == nil {
		return m, nil
	}
	if err := reg.Register(m.requests); err != nil {
		return nil, err
	}
	return m, reg.Register(m.downloaded)
}
