//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/door"
	"mcp-code-sandbox/internal/egress"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/proxy"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/wire"
)

// bodySize is the size of a large answer.
const bodySize = 100 << 20

// certificates names the variable with the file of trusted certificates. Go reads it once, before
// the first connection.
const certificates = "SSL_CERT_FILE"

// way is one way to reach a service.
type way struct {
	name string
	call func(path string) error
}

// proxy measures calls through the execution proxy in turn with direct calls and calls through a
// relay that only copies. All parts share this process and loopback, so nothing hides the proxy's
// cost. Over HTTPS the proxy does the client's share of the encryption.
func (b *bench) proxy(ctx context.Context) (*section, error) {
	own, err := b.own(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.dir, "proxy-")
	if err != nil {
		return nil, err
	}
	s := &section{Title: "The execution proxy, all of it in one process", Header: proxyHeader}
	if trusted, ok := os.LookupEnv(certificates); ok { // startService changes it
		defer os.Setenv(certificates, trusted)
	} else {
		defer os.Unsetenv(certificates)
	}
	for _, scheme := range []string{"http", "https"} {
		if err := benchScheme(ctx, s, own.name, b.scaled(60), scheme, filepath.Join(dir, scheme)); err != nil {
			return nil, fmt.Errorf("calls by %s: %w", scheme, err)
		}
	}
	return s, nil
}

var proxyHeader = []string{"calls of a service", "p50", "p99", "added", "CPU added"}

func benchScheme(ctx context.Context, s *section, own string, n int, scheme, dir string) error {
	up, err := startService(scheme, dir)
	if err != nil {
		return err
	}
	defer up.Close()
	base, err := url.Parse(up.URL)
	if err != nil {
		return err
	}
	ways := []way{{"direct", caller(up.Client(), up.URL, "")}}

	relay := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(base) }, Transport: up.Client().Transport, BufferPool: copyBuffers{},
	})
	defer relay.Close()
	ways = append(ways, way{"through a relay that only copies", caller(relay.Client(), relay.URL, "")})

	trail, err := audit.Open(filepath.Join(dir, "audit.jsonl"))
	if err != nil {
		return err
	}
	defer trail.Close()
	p, stop, err := startProxy(base, dir, trail)
	if err != nil {
		return err
	}
	defer stop()
	token, err := p.Issue(ctx, "bench", proxy.GrantRequest{Service: "service", ExecutionID: "bench", TTL: proxy.MaxTTL})
	if err != nil {
		return err
	}
	front := httptest.NewServer(p)
	defer front.Close()
	ways = append(ways, way{"through the execution proxy", caller(front.Client(), front.URL+"/proxy/service", token.Token)})

	hosts, err := startEgress(trail)
	if err != nil {
		return err
	}
	inside, leave, err := startSandboxSide(p, hosts)
	if err != nil {
		return err
	}
	defer leave()
	tokens, err := p.IssueForRun(ctx, "bench", "run", sandboxID, proxy.MaxTTL, []proxy.GrantRequest{{Service: "service"}})
	if err != nil {
		return err
	}
	ways = append(ways, way{"the same, from a sandbox", caller(&http.Client{Transport: &http.Transport{}}, inside+"/proxy/service", tokens[0].Token)})

	named, address, err := byName(hosts, up, base, inside)
	if err != nil {
		return err
	}
	ways = append(ways, way{"to a named host, from a sandbox", caller(named, address, "")})

	small, err := inTurn(ctx, 2*n, 10, "/small", ways)
	if err != nil {
		return err
	}
	large, err := inTurn(ctx, max(3, n/6), 1, "/large", ways)
	if err != nil {
		return err
	}
	report(s, own, scheme, ways, small, large)
	fresh := []way{{"direct", caller(unkept(up.Client()), up.URL, "")}, {"to a named host, from a sandbox", caller(unkept(named), address, "")}}
	opened, err := inTurn(ctx, 2*n, 10, "/small", fresh)
	if err != nil {
		return err
	}
	for i, w := range fresh {
		row := []string{"short " + scheme + " call on a new connection, " + w.name, ms(percentile(opened[i].wall, 50)), ms(percentile(opened[i].wall, 99))}
		if i > 0 {
			added := percentile(opened[i].wall, 50) - percentile(opened[0].wall, 50)
			s.set(scheme+" connection added "+own, float64(added.Nanoseconds())/1e6)
			row = append(row, ms(added), ms(percentile(opened[i].cpu, 50)-percentile(opened[0].cpu, 50)))
		}
		s.row(row...)
	}
	return nil
}

func report(s *section, own, scheme string, ways []way, small, large []samples) {
	median := func(d []time.Duration) time.Duration { return percentile(d, 50) }
	for i, w := range ways {
		row := []string{"short " + scheme + " call, " + w.name, ms(median(small[i].wall)), ms(percentile(small[i].wall, 99))}
		if i > 0 {
			row = append(row, ms(median(small[i].wall)-median(small[0].wall)), ms(median(small[i].cpu)-median(small[0].cpu)))
		}
		s.row(row...)
	}
	for i, w := range ways {
		wall := median(large[i].wall)
		row := []string{"100 MB by " + scheme + ", " + w.name, fmt.Sprintf("%.0f MB/s", bodySize/1e6/wall.Seconds()), ""}
		if i > 0 {
			part := median(large[0].wall).Seconds() / wall.Seconds()
			s.set(scheme+" "+w.name+" "+own, part)
			row = append(row, percent(part)+" of direct", ms(median(large[i].cpu)-median(large[0].cpu)))
		}
		s.row(row...)
	}
}

// startService starts the called service, with a certificate that this process trusts.
func startService(scheme, dir string) (*httptest.Server, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	handler := serviceHandler()
	if scheme == "http" {
		return httptest.NewServer(handler), nil
	}
	up := httptest.NewTLSServer(handler)
	path := filepath.Join(dir, "service.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: up.Certificate().Raw})
	if err := errors.Join(os.WriteFile(path, certificate, 0o600), os.Setenv(certificates, path)); err != nil {
		up.Close()
		return nil, err
	}
	return up, nil
}

func startProxy(base *url.URL, dir string, trail *audit.Trail) (p *proxy.Proxy, stop func(), err error) {
	db, err := store.Open(context.Background(), filepath.Join(dir, "state.db"))
	if err != nil {
		return nil, nil, err
	}
	stop = func() { db.Close() }
	p, err = proxy.New(proxy.Config{
		Services: []proxy.Service{{
			Name: "service", BaseURL: base, Defaults: []string{"/**"}, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
			Credential: credential.Bearer(secret.New("bench_0123456789abcdefghijABCDEFGHIJ")),
			RateLimit:  proxy.Rate{PerSecond: 1e6}, TokenRate: proxy.Rate{PerSecond: 1e6},
		}},
		Keys: executiontoken.NewKeys(make([]byte, 32), "execution token"), Store: db, Audit: trail,
	})
	if err != nil {
		stop()
	}
	return p, stop, err
}

const sandboxID = "bench"

// startSandboxSide does the agent's part: it carries connections from a local address over the wire
// to the proxy.
func startSandboxSide(p *proxy.Proxy, e *egress.Egress) (address string, stop func(), err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return "", nil, err
	}
	d := door.New(door.Config{Rooms: map[string]door.Room{"proxy": p}, Egress: e})
	server := wire.NewConn(os.NewFile(uintptr(fds[0]), "agent"), wire.ServerSide, func(s *wire.Stream, f wire.Frame) {
		d.Serve(context.Background(), sandboxID, f.Host, s)
	})
	agent := wire.NewConn(os.NewFile(uintptr(fds[1]), "server"), wire.AgentSide, nil)
	closeBoth := func() { agent.Close(); server.Close() }
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		closeBoth()
		return "", nil, err
	}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connections.Go(func() {
				defer c.Close()
				s, err := agent.Open(wire.Frame{Type: wire.TypeDial})
				if err != nil {
					return
				}
				defer s.Close()
				connections.Go(func() {
					_, _ = s.ReadFrom(c)
					_ = s.CloseWrite()
				})
				_, _ = s.WriteTo(c)
			})
		}
	})
	return "http://" + l.Addr().String(), func() { l.Close(); closeBoth(); connections.Wait() }, nil
}

// copyBuffers gives the relay buffers of the same size as the proxy's.
type copyBuffers struct{}

func (copyBuffers) Get() []byte { return make([]byte, 256<<10) }
func (copyBuffers) Put([]byte)  {}

// serviceHandler answers /small with a line and /large with bodySize bytes that look like an API's
// answer.
func serviceHandler() http.Handler {
	block := make([]byte, 0, 256<<10)
	for len(block) < 256<<10 {
		block = append(block, `{"metric":"system.cpu.user","host":"`+rand.Text()+`","points":[[1700000000,12.5]],"tags":["env:prod","team:core"]},`...)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/large" {
			_, _ = io.WriteString(w, `{"ok":true}`)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(bodySize))
		for left := bodySize; left > 0; left -= len(block) {
			if _, err := w.Write(block[:min(left, len(block))]); err != nil {
				return
			}
		}
	})
}

// caller returns a function that requests a path on one connection and reads the whole answer.
func caller(client *http.Client, base, token string) func(path string) error {
	client.Transport.(*http.Transport).ReadBufferSize = 64 << 10
	buf := make([]byte, 256<<10)
	return func(path string) error {
		req, err := http.NewRequest(http.MethodGet, base+path, nil)
		if err != nil {
			return err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, buf)
		return err
	}
}

// samples holds the wall time and this process's CPU time of each call.
type samples struct{ wall, cpu []time.Duration }

// inTurn measures n rounds of each way in turn, with a number of consecutive calls per round.
func inTurn(ctx context.Context, n, row int, path string, ways []way) ([]samples, error) {
	taken := make([]samples, len(ways))
	for i := range n + 1 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for k, w := range ways {
			before := processorTime()
			for range row {
				start := time.Now()
				if err := w.call(path); err != nil {
					return nil, fmt.Errorf("%s: %w", w.name, err)
				}
				if i > 0 { // the first round warms up
					taken[k].wall = append(taken[k].wall, time.Since(start))
				}
			}
			if i > 0 {
				taken[k].cpu = append(taken[k].cpu, (processorTime()-before)/time.Duration(row))
			}
		}
	}
	return taken, nil
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for oneself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
