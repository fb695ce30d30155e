package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"mcp-code-sandbox/internal/window"
)

type stdioCmd struct {
	Alone bool `help:"Use a server of its own instead of sharing one with windows that have the same settings."`
	Stop  bool `help:"End the servers that windows share, and their runs. A window starts another one when it needs it."`
}

// Run serves one client on stdin and stdout until ctx ends, or until stdin ends and every call is
// answered. Only MCP messages go to stdout. File links are served over HTTP.
func (c *stdioCmd) Run(ctx context.Context, inv *invocation) error {
	switch {
	case c.Stop:
		return stopShared(ctx, inv)
	case c.Alone || inv.self == "" || inv.shared == shareNone:
		return serveAlone(ctx, inv)
	case inv.shared != "":
		return serveShared(ctx, inv)
	}
	err := serveWindow(ctx, inv)
	if errors.Is(err, window.ErrUnavailable) {
		fmt.Fprintf(inv.stderr, "mcp-code-sandbox: this window has a server of its own: %v\n", err)
		enterOuterNamespace(append([]string{"--shared-server=" + shareNone}, inv.args...), inv.environ())
		return serveAlone(ctx, inv)
	}
	return err
}

// shareNone is the id of a shared server that means --alone.
const shareNone = "none"

// isWindow reports whether the stdio command runs no code itself.
func (c *cli) isWindow() bool {
	return c.Stdio.Stop || !c.Stdio.Alone && (c.SharedServer == "" || c.SharedServer != shareNone && isSessionLeader())
}

// serveAlone serves the client in this process.
func serveAlone(ctx context.Context, inv *invocation) error {
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
