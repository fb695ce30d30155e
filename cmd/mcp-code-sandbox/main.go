// Command mcp-code-sandbox runs the code of MCP clients in an OS-level sandbox. See README.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"mcp-code-sandbox/internal/userns"
)

func main() {
	userns.Adopt(os.Getenv(userns.Marker))
	_ = os.Unsetenv(userns.Marker)
	enterOuterNamespace(os.Args[1:], os.Environ())
	withholdDescriptors()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	// This path is the running executable even after an upgrade has replaced the file.
	p := program{self: "/proc/self/exe", name: os.Args[0]}
	code := p.run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
