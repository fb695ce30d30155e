package main

import (
	"context"
	"errors"
	"io"

	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/httpapi"
)

type stdioCmd struct{}

// Run serves one client on stdin and stdout until ctx ends, or stdin does and what was asked has been answered. Nothing but MCP
// messages goes to stdout. File links are served over HTTP, on the configured port or a free one.
func (*stdioCmd) Run(ctx context.Context, inv *invocation) error {
	s := inv.settings
	l, note, err := listen(ctx, s, true)
	if err != nil {
		return err
	}
	defer l.Close()
	base := baseURL(s, l)
	a, err := newApp(ctx, inv, base)
	if err != nil {
		return err
	}
	m, err := newMCP(a)
	if err != nil {
		return errors.Join(err, a.Close())
	}
	defer limitMemory(inv.env, doctor.System().Memory(), a.log)()
	if note != "" {
		a.log.Info("[HTTP] " + note)
	}
	a.tasks.start(a.reportReadiness)

	server := httpapi.NewServer(newHandler(a, base, nil, nil), a.log)
	go server.Serve(httpapi.Limit(l, httpapi.MaxConnections()))
	a.log.Info("[MCP] serving on stdin and stdout; file links at "+base, "instance", a.instance.ID())

	err = m.ServeStdio(ctx, readCloser(inv.stdin), writeCloser(inv.stdout))
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		err = nil // asked to end, or the client has gone: both are how it ends
	}
	return errors.Join(err, shutdown(server, m), a.Close())
}

func readCloser(r io.Reader) io.ReadCloser {
	if rc, ok := r.(io.ReadCloser); ok {
		return rc
	}
	return io.NopCloser(r)
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }

func writeCloser(w io.Writer) io.WriteCloser {
	if wc, ok := w.(io.WriteCloser); ok {
		return wc
	}
	return nopWriteCloser{w}
}
