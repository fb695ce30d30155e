package egress

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"mcp-code-sandbox/internal/httpconn"
)

const (
	maxResponseHeader = 256 << 10
	refusalTimeout    = 10 * time.Second // how long code may take to read why its request ended
)

// serveURL serves an absolute-form request: plain HTTP through a proxy. The target decides where it
// goes: net/http has replaced the Host of the request by it, as RFC 9112 demands of a proxy.
func (e *Egress) serveURL(w http.ResponseWriter, r *http.Request, runs []*run) *refusal {
	switch {
	case r.URL.Scheme == "https":
		return refuse(http.StatusBadRequest, codeInvalid, "Use CONNECT for https:// addresses: the proxy does not see into TLS.")
	case r.URL.Scheme != "http" || r.URL.Host == "":
		return refuse(http.StatusBadRequest, codeInvalid, "The proxy serves CONNECT and http:// addresses only.")
	case r.URL.User != nil:
		return refuse(http.StatusBadRequest, codeInvalid, "Leave the user out of the address: send it in the header Authorization.")
	}
	host := r.URL.Host
	if r.URL.Port() == "" {
		host = strings.TrimSuffix(host, ":") + ":80"
	}
	runs, to, problem := e.admit(runs, host)
	if problem != nil {
		return problem
	}
	defer runs[0].leave()
	ctx, cancel := runs[0].bind(r.Context())
	defer cancel(nil)
	return e.forward(ctx, w, r, runs, to)
}

// serveHTTP serves requests on a connection that code made to port 80 of a host.
func (e *Egress) serveHTTP(ctx context.Context, runs []*run, to target, code net.Conn) {
	httpconn.Serve(ctx, code, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, err := parseTarget(r.Host)
		if asked.port == 0 {
			asked.port = to.port
		}
		refused := func(reason string, p *refusal) *refusal {
			return e.refused(runs, to.String(), to.name, p.because(reason))
		}
		var problem *refusal
		switch {
		case r.Method == http.MethodConnect || r.URL.Scheme != "" && r.URL.Scheme != "http" || r.URL.User != nil:
			problem = refused("code uses a connection to it as one to a proxy",
				refuse(http.StatusBadRequest, codeInvalid, "This is a connection to %s, not to a proxy.", to.address()))
		case err != nil || asked != to:
			problem = refused("code asks for "+shown(r.Host)+" on a connection to it: connect to that host instead",
				refuse(http.StatusBadRequest, codeInvalid, "The request is for %s on a connection to %s: connect to that host instead.",
					shown(r.Host), to.address()))
		default:
			problem = e.forward(r.Context(), w, r, runs, to) // which ends with ctx
		}
		if problem != nil {
			w.Header().Set("Connection", "close") // another run may pay for the next connection
			problem.write(w)
		}
	}), e.log)
}

// forward sends a request on a connection of its own and answers with the response. ctx ends with
// the first of runs.
func (e *Egress) forward(ctx context.Context, w http.ResponseWriter, r *http.Request, runs []*run, to target) *refusal {
	switch {
	case to.port == 443:
		return refuse(http.StatusBadRequest, codeInvalid, "Port 443 is for https:// addresses.")
	case r.URL.Opaque != "": // would be sent as it is, and may name another host
		return refuse(http.StatusBadRequest, codeInvalid, "Write the address as in http://%s/path.", to)
	case r.URL.Path != "" && r.URL.Path[0] != '/':
		return refuse(http.StatusBadRequest, codeInvalid, "The path must begin with a slash.")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t, problem := e.open(ctx, cancel, runs, to)
	if problem != nil {
		return problem
	}
	defer t.finish()
	// The code may neither send nor read: end its part too, after it could read a refusal, or with
	// the run, whose Release waits.
	control := http.NewResponseController(w)
	done := make(chan struct{})
	defer close(done)
	defer context.AfterFunc(ctx, func() {
		now := time.Now()
		_ = control.SetReadDeadline(now)
		_ = control.SetWriteDeadline(now.Add(refusalTimeout))
		t.Conn.Close()
		select {
		case <-runs[0].ctx.Done():
			_ = control.SetWriteDeadline(now)
		case <-done:
		}
	})()
	transport := &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return t, nil },
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxResponseHeader,
	}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, BufferPool: &e.buffers, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			out := p.Out
			out.URL.Scheme, out.URL.Host, out.Host = "http", to.address(), to.String()
			out.URL.RawQuery = p.In.URL.RawQuery
			for name := range out.Header {
				if strings.HasPrefix(name, "Proxy-") || name == "Upgrade" || name == "Connection" {
					delete(out.Header, name)
				}
			}
		},
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode == http.StatusSwitchingProtocols {
				return errors.New("an upgrade that nobody asked for")
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			if problem = causeOf(ctx); problem == nil {
				problem = refuse(http.StatusBadGateway, codeUnreachable, "%s ended the connection or did not answer in HTTP.", to).
					because("the host ended the connection or did not answer in HTTP")
			}
			if ctx.Err() == nil { // otherwise the code has left
				t.failed = problem
			}
		},
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
	if problem != nil && ctx.Err() != nil {
		w.Header().Set("Connection", "close") // its read deadline has passed
	}
	return problem
}
