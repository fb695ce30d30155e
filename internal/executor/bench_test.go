package executor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/workspace"
)

// The server's own cost of a run, of any kind, does not grow with the number of open sessions.
func BenchmarkOpenSessions(b *testing.B) {
	for _, open := range []int{1, 1000} {
		backend := &sessiontest.Backend{}
		quota := workspace.Usage{Bytes: 1 << 30, Files: 50_000}
		sessions := session.New(session.Config{Root: b.TempDir(), InstallationKey: []byte("key"), Backend: backend,
			Owner: workspace.Owner{UID: -1, GID: -1}, MaxSessions: open + 1, ClosedRetention: time.Hour, Quota: quota})
		r := newRig(b, nil, func(c *Config) { c.Sessions, c.Quota, c.Logger = sessions, quota, nil })
		b.Cleanup(func() { _ = sessions.Close(context.Background()) })
		run := func(b *testing.B, req Request) {
			req.Runner, req.Code = "python", "x"
			if res, err := r.Run(b.Context(), session.Local, req); err != nil || !res.Success() {
				b.Fatalf("%+v, %v", res, err)
			}
		}
		for i := range open {
			run(b, Request{Session: fmt.Sprint("s", i)})
		}
		for _, kind := range []struct {
			name string
			req  Request
		}{
			{"files", Request{Session: "s0"}},
			{"artifacts", Request{Session: "s0", Artifacts: true}},
			{"once", Request{Session: "once", Once: true}},
		} {
			b.Run(fmt.Sprintf("%s/sessions=%d", kind.name, open), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					run(b, kind.req)
				}
			})
		}
	}
}
