//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/proxy"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
)

// benchProxy measures calls through the execution proxy beside direct ones, to the same service on loopback, in turn. All three are in this
// process, so they share its processors: the body's rate is a lower bound.
func benchProxy(t *table, n int) error {
	up := httptest.NewServer(serviceHandler(100 << 20))
	defer up.Close()
	dir, err := os.MkdirTemp("", "bench-proxy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	db, err := store.Open(ctx, filepath.Join(dir, "state.db"))
	if err != nil {
		return err
	}
	defer db.Close()
	audit, err := proxy.OpenAudit(filepath.Join(dir, "audit.jsonl"))
	if err != nil {
		return err
	}
	defer audit.Close()
	base, err := url.Parse(up.URL)
	if err != nil {
		return err
	}
	p, err := proxy.New(proxy.Config{
		Services: []proxy.Service{{
			Name: "service", BaseURL: base, Defaults: []string{"/**"}, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
			Credential: credential.Bearer(secret.New("bench_0123456789abcdefghijABCDEFGHIJ")),
			RateLimit:  proxy.Rate{PerSecond: 1e6}, TokenRate: proxy.Rate{PerSecond: 1e6},
		}},
		Keys: executiontoken.NewKeys(make([]byte, 32), "execution token"), Store: db, Audit: audit,
	})
	if err != nil {
		return err
	}
	token, err := p.Issue(ctx, "bench", proxy.GrantRequest{Service: "service", ExecutionID: "bench", TTL: proxy.MaxTTL})
	if err != nil {
		return err
	}
	front := httptest.NewServer(p)
	defer front.Close()

	direct := caller(up.URL, "")
	proxied := caller(front.URL+"/proxy/service", token.Token)
	small, err := inTurn(20*n, "/small", direct, proxied)
	if err != nil {
		return err
	}
	large, err := inTurn(max(3, n/10), "/large", direct, proxied)
	if err != nil {
		return err
	}
	micro := func(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }
	for i, name := range []string{"direct request to a service on loopback", "the same through the execution proxy"} {
		t.row(name, micro(percentile(small[i], 50)), micro(percentile(small[i], 99)), "")
	}
	t.row("added by the proxy", micro(percentile(small[1], 50)-percentile(small[0], 50)), "", "")
	rate := func(d time.Duration) float64 { return 100 / d.Seconds() }
	a, b := rate(percentile(large[0], 50)), rate(percentile(large[1], 50))
	t.row("body of 100 MB, direct", fmt.Sprintf("%.0f MB/s", a), "", "")
	t.row("body of 100 MB, proxied and scrubbed", fmt.Sprintf("%.0f MB/s (%.0f %%)", b, 100*b/a), "", "")
	return nil
}

// serviceHandler answers /small with a line and /large with that many bytes, which look like an API's.
func serviceHandler(size int) http.Handler {
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
		w.Header().Set("Content-Length", strconv.Itoa(size))
		for left := size; left > 0; left -= len(block) {
			if _, err := w.Write(block[:min(left, len(block))]); err != nil {
				return
			}
		}
	})
}

// caller returns a function that gets a path, on one connection, and reads the answer to its end.
func caller(base, token string) func(path string) error {
	client := &http.Client{Transport: &http.Transport{ReadBufferSize: 64 << 10}}
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

// inTurn measures each caller n times, one after the other.
func inTurn(n int, path string, callers ...func(string) error) ([][]time.Duration, error) {
	times := make([][]time.Duration, len(callers))
	for i := range n + 2 {
		for k, call := range callers {
			start := time.Now()
			if err := call(path); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if i >= 2 { // the first two warm up
				times[k] = append(times[k], time.Since(start))
			}
		}
	}
	return times, nil
}
