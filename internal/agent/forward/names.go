package forward

import (
	"errors"
	"hash/fnv"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/wire"
)

// maxListeners bounds the listeners and the names of a sandbox. A wildcard allows any number.
const maxListeners = 256

// errBusy is the error of a lookup for which the agent cannot listen.
var errBusy = errors.New("no address for the name")

// rule allows a name, or every name below it, on a port.
type rule struct {
	name string // with its first dot, if it stands for every name below
	port int
}

// parseRule reads "name:port" or "*.name:port".
func parseRule(text string) (rule, bool) {
	name, digits, _ := strings.Cut(strings.ToLower(text), ":")
	port, err := strconv.ParseUint(digits, 10, 16)
	return rule{strings.TrimPrefix(name, "*"), int(port)}, err == nil && port > 0
}

func (r rule) matches(host string) bool {
	if r.name[:1] == "." {
		return strings.HasSuffix(host, r.name)
	}
	return host == r.name
}

// names are the names that code has looked up. They belong to the sandbox: the runs that overlap
// share them. After the first lookup of a name, the agent listens for it while a run has a rule
// for it.
type names struct {
	mu        sync.Mutex
	rules     map[rule]int // how many runs have it
	known     map[string]*name
	listeners int
	lookups   uint64
	reported  map[string]bool // denied names, since the last run began
}

// name is what the agent knows of a name that was looked up.
type name struct {
	addr      netip.Addr
	ports     map[int]*listener
	looked    uint64 // the number of the last lookup
	connected int    // how many connections are open
}

// listener is where the agent listens for a name, with the connections that came.
type listener struct {
	net.Listener
	conns map[*net.TCPConn]*wire.Stream // nil after the end
}

// Begin lets code reach what a run's rules allow, until end. It listens for the names that earlier
// runs looked up, because programs remember addresses. A run without rules costs nothing.
func (f *Forwarder) Begin(rules []string) (end func()) {
	if f == nil {
		return func() {}
	}
	n := &f.names
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reported = nil
	var own []rule
	for _, text := range rules {
		if r, ok := parseRule(text); ok && r.name != "" {
			own = append(own, r)
		}
	}
	if len(own) == 0 {
		return func() {}
	}
	if n.rules == nil {
		n.rules, n.known = map[rule]int{}, map[string]*name{}
	}
	for _, r := range own {
		n.rules[r]++
	}
	for host := range n.known {
		_ = f.listenLocked(host, n.portsLocked(host))
	}
	return func() { n.end(own) }
}

// end closes what no run has a rule for any more.
func (n *names) end(rules []rule) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range rules {
		if n.rules[r]--; n.rules[r] <= 0 {
			delete(n.rules, r)
		}
	}
	for host, e := range n.known {
		keep := n.portsLocked(host)
		for port := range e.ports {
			if !keep[port] {
				n.closeLocked(host, port)
			}
		}
	}
}

func (n *names) closeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.rules)
	for host := range n.known {
		n.dropLocked(host)
	}
}

// portsLocked returns the ports on which code may reach a host.
func (n *names) portsLocked(host string) map[int]bool {
	var ports map[int]bool
	for r := range n.rules {
		if r.matches(host) {
			if ports == nil {
				ports = map[int]bool{}
			}
			ports[r.port] = true
		}
	}
	return ports
}

// resolve returns the address of a name, and false if code may not reach it. The agent listens on
// every port of the name when resolve returns: otherwise code of another run could listen there.
func (f *Forwarder) resolve(host string) (netip.Addr, bool, error) {
	n := &f.names
	n.mu.Lock()
	defer n.mu.Unlock()
	ports := n.portsLocked(host)
	if len(ports) == 0 {
		return netip.Addr{}, false, nil
	}
	e := n.known[host]
	if e == nil {
		e = &name{addr: n.addressLocked(host), ports: map[int]*listener{}}
		n.known[host] = e
	}
	n.lookups++
	e.looked = n.lookups
	return e.addr, true, f.listenLocked(host, ports)
}

// listenLocked listens on ports of a known name. It forgets one for which it cannot listen at all.
func (f *Forwarder) listenLocked(host string, ports map[int]bool) error {
	n := &f.names
	e := n.known[host]
	for port := range ports {
		if e.ports[port] != nil {
			continue
		}
		for (n.listeners >= maxListeners || len(n.known) > maxListeners) && n.evictLocked(host) {
		}
		var l net.Listener
		err := errBusy
		if n.listeners < maxListeners {
			l, err = net.Listen("tcp4", netip.AddrPortFrom(e.addr, uint16(port)).String())
		}
		if err != nil {
			if len(e.ports) == 0 {
				delete(n.known, host)
			}
			return err
		}
		e.ports[port] = &listener{Listener: l, conns: map[*net.TCPConn]*wire.Stream{}}
		n.listeners++
		go f.serveName(net.JoinHostPort(host, strconv.Itoa(port)), e, e.ports[port])
	}
	return nil
}

// addressLocked returns a free address in 127.66.0.0/16. It depends on the name, because programs
// remember addresses over runs.
func (n *names) addressLocked(host string) netip.Addr {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(host))
	for at := uint16(hash.Sum32()); ; at++ {
		addr, taken := netip.AddrFrom4([4]byte{127, 66, byte(at >> 8), byte(at)}), false
		for _, e := range n.known {
			taken = taken || e.addr == addr
		}
		if !taken {
			return addr
		}
	}
}

// evictLocked drops the name, other than host, that has no connection and whose last lookup is the
// oldest. It returns false if there is none. A name that a run lists in full stays: other code of
// the session could listen in its place.
func (n *names) evictLocked(host string) bool {
	oldest := ""
	for other, e := range n.known {
		if other != host && e.connected == 0 && (oldest == "" || e.looked < n.known[oldest].looked) && !n.isListedLocked(other) {
			oldest = other
		}
	}
	if oldest != "" {
		n.dropLocked(oldest)
	}
	return oldest != ""
}

// isListedLocked reports whether an active run lists a host in full.
func (n *names) isListedLocked(host string) bool {
	for r := range n.rules {
		if r.name == host {
			return true
		}
	}
	return false
}

func (n *names) dropLocked(host string) {
	for port := range n.known[host].ports {
		n.closeLocked(host, port)
	}
	delete(n.known, host)
}

// closeLocked ends a listener and its connections.
func (n *names) closeLocked(host string, port int) {
	e := n.known[host]
	l := e.ports[port]
	delete(e.ports, port)
	n.listeners--
	_ = l.Close()
	for c, s := range l.conns {
		_ = c.Close()
		_ = s.SetDeadline(time.Unix(1, 0)) // carry closes it
	}
	e.connected -= len(l.conns)
	l.conns = nil
}

// serveName carries the connections to one port of a name.
func (f *Forwarder) serveName(target string, e *name, l *listener) {
	n := &f.names
	accept(l, func(c *net.TCPConn) {
		s := f.dial(c, target)
		if s == nil {
			return
		}
		if !n.add(e, l, c, s) { // the run has ended
			_ = c.Close()
			_ = s.Close()
			return
		}
		go func() {
			defer n.remove(e, l, c)
			carry(c, s)
		}()
	})
}

func (n *names) add(e *name, l *listener, c *net.TCPConn, s *wire.Stream) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.conns == nil {
		return false
	}
	l.conns[c] = s
	e.connected++
	return true
}

func (n *names) remove(e *name, l *listener, c *net.TCPConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.conns != nil {
		delete(l.conns, c)
		e.connected--
	}
}
