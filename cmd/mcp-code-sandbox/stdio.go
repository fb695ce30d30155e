package main

import (
	"context"
	"errors"
	"io"
)

type stdioCmd struct{}

// Run serves one client on stdin and stdout until ctx ends, or until stdin ends and every call is
// answered. Only MCP messages go to stdout. File links are served over HTTP.
func (*stdioCmd) Run(ctx context.Context, inv *invocation) error {
	f, err := openFrontend(ctx, inv, nil)
	if err != nil {
		return err
	}
	go f.serveHTTP()
	f.log.Info("[MCP] serving on stdin and stdout; file links at "+f.base, "instance", f.instance.ID())
	err = f.mcp.ServeStdio(ctx, readCloser(inv.stdin), writeCloser(inv.stdout))
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		err = nil // the operator or the client has ended it
	}
	return errors.Join(err, f.close())
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
