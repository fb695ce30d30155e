package proxy

import (
	"mcp-code-sandbox/internal/audit"
	"runtime"
	"strings"
	"testing"
)

// Without an audit record there is no call and no token.
func TestAuditFullMeansNo(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /dev/full")
	}
	up := serveWire(t, plainAnswer)
	f := setup(t, up.url, nil)
	tok := f.issue(nil)
	full, err := audit.Open("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	good := f.p.audit
	f.p.audit = full
	res, text := f.get("/proxy/datadog/x", tok.Token)
	if res.StatusCode != 503 || !strings.Contains(text, "audit trail") {
		t.Errorf("%s %s", res.Status, text)
	}
	if got := up.requests(); len(got) > 0 {
		t.Errorf("the service saw %q", got)
	}
	if _, err := f.p.Issue(t.Context(), "ann", GrantRequest{Service: "datadog", ExecutionID: "e"}); err == nil {
		t.Error("a token was issued")
	}
	if err := f.p.Revoke(t.Context(), "ann", tok.JTI); err != nil {
		t.Errorf("a token cannot be revoked: %v", err)
	}
	if list, err := f.p.List(t.Context(), "ann"); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	f.p.audit = good
	if res, text := f.get("/proxy/datadog/x", f.issue(nil).Token); res.StatusCode != 200 {
		t.Errorf("afterwards: %s %s", res.Status, text)
	}
}
