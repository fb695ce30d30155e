package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestCallsShared: a user whose calls never end loses the oldest one when another caller needs
// room. The canceled call, and one that finds no room, get a Retry-After.
func TestCallsShared(t *testing.T) {
	held := make(chan struct{}, 8)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/hold") {
			held <- struct{}{}
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, "done")
	}))
	t.Cleanup(up.Close)
	f := setup(t, up.URL, func(c *Config) { c.MaxCalls, c.Operator = 3, "local" })
	tokens := map[string]string{}
	for _, caller := range []string{"ann", "bob", "local"} {
		tok, err := f.p.Issue(t.Context(), caller, GrantRequest{Service: "datadog", ExecutionID: "exec-" + caller})
		if err != nil {
			t.Fatal(err)
		}
		tokens[caller] = tok.Token
	}
	type answer struct {
		status      int
		retry, body string
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hold := func(caller string) <-chan answer {
		ch := make(chan answer, 1)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.addr+"/proxy/datadog/hold", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+tokens[caller])
		go func() {
			res, err := direct(t).RoundTrip(req)
			if err != nil {
				ch <- answer{body: err.Error()}
				return
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			ch <- answer{res.StatusCode, res.Header.Get("Retry-After"), string(body)}
		}()
		select {
		case <-held:
		case a := <-ch:
			t.Fatalf("a call of %s: %+v", caller, a)
		}
		return ch
	}
	oldest := hold("ann")
	hold("ann")
	newest := hold("ann")
	wantBusy := func(who string, status int, retry, body, text string) {
		t.Helper()
		if status != http.StatusServiceUnavailable || retry != "1" || !strings.Contains(body, `"busy"`) || !strings.Contains(body, text) {
			t.Errorf("%s: %d, Retry-After %q, %s", who, status, retry, body)
		}
	}
	res, body := f.get("/proxy/datadog/x", tokens["ann"]) // beyond her own share
	wantBusy("ann's fourth", res.StatusCode, res.Header.Get("Retry-After"), body, "too many requests at a time")

	if res, body := f.get("/proxy/datadog/x", tokens["bob"]); res.StatusCode != http.StatusOK || body != "done" {
		t.Errorf("bob's first: %d %s", res.StatusCode, body)
	}
	cut := <-oldest
	wantBusy("ann's oldest", cut.status, cut.retry, cut.body, "make room for another caller")
	released := func() { // by bob's call, just after its answer
		t.Helper()
		eventually(t, "bob's call to end", func() bool { return f.p.Shares().Held("bob") == 0 })
	}
	released()
	hold("local")
	res, body = f.get("/proxy/datadog/x", tokens["bob"])
	if res.StatusCode != http.StatusOK {
		t.Errorf("bob's second, from ann's two: %d %s", res.StatusCode, body)
	}
	released()
	hold("local") // the operator's are never canceled
	res, body = f.get("/proxy/datadog/x", tokens["bob"])
	wantBusy("bob's third", res.StatusCode, res.Header.Get("Retry-After"), body, "too many requests at a time")
	if a, l := f.p.Shares().Held("ann"), f.p.Shares().Held("local"); a != 1 || l != 2 {
		t.Errorf("ann holds %d, the operator %d", a, l)
	}
	cancel()
	<-newest
	eventually(t, "the calls to end", func() bool { return f.p.Shares().Stats().Used == 0 })
}
