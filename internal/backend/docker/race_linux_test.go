package docker_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestReapWhileStarting: Reap does not remove a sandbox that was started after Reap began and
// before it listed the containers.
func TestReapWhileStarting(t *testing.T) {
	engine, ok := strings.CutPrefix(engineHost(t), "unix://")
	if !ok {
		sandboxtest.Skip(t, "the engine has no socket to stand before")
	}
	// A proxy that delays the list of containers.
	var hold atomic.Bool
	asked, answer := make(chan struct{}), make(chan struct{})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", engine)
	}}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.Transport = transport
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/containers/json") && hold.CompareAndSwap(true, false) {
			asked <- struct{}{}
			<-answer
		}
		proxy.ServeHTTP(w, r)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(ln)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		transport.CloseIdleConnections()
	})

	b := open(t, t.TempDir(), func(c *docker.Config) { c.Host = "unix://" + ln.Addr().String() })
	h := harness(t, b)
	hold.Store(true)
	swept := make(chan error, 1)
	go func() { swept <- b.Reap(context.Background(), func(string) bool { return true }) }()
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal("Reap does not list containers")
	}
	box := sandboxtest.Start(t, h, sandbox.Spec{})
	close(answer)
	if err := <-swept; err != nil {
		t.Error(err)
	}
	box.Alive(t)
}
