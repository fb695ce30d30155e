package egress

import "github.com/prometheus/client_golang/prometheus"

// metrics counts connections and bytes per host. Code chooses the names, so only those that the
// operator wrote have a label of their own.
type metrics struct {
	connections, bytes *prometheus.CounterVec
	hosts              map[string]bool
}

func newMetrics(reg prometheus.Registerer, ceiling []rule) (*metrics, error) {
	m := &metrics{
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "egress_connections_total", Help: "Connections of code to hosts by name, by result."}, []string{"host", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "egress_bytes_total", Help: "Bytes of those connections: sent, received."}, []string{"host", "direction"}),
		hosts: map[string]bool{},
	}
	for _, r := range ceiling {
		if !r.below {
			m.hosts[r.name] = true
		}
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.connections, m.bytes} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) label(name string) string {
	if m.hosts[name] {
		return name
	}
	return "other"
}

func (m *metrics) count(name, result string) {
	m.connections.WithLabelValues(m.label(name), result).Inc()
}

func (m *metrics) carried(name string, sent, received int64) {
	m.bytes.WithLabelValues(m.label(name), "sent").Add(float64(sent))
	m.bytes.WithLabelValues(m.label(name), "received").Add(float64(received))
}
