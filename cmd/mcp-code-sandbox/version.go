package main

import (
	"fmt"
	"runtime"

	"github.com/alecthomas/kong"

	"mcp-code-sandbox/internal/version"
)

type versionCmd struct{}

func (*versionCmd) Run(inv *invocation) error {
	fmt.Fprintln(inv.stdout, versionLine())
	return nil
}

// versionFlag is --version, which needs no command.
type versionFlag bool

// BeforeReset is called by kong once it has read the flag, before it asks for a command.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	fmt.Fprintln(app.Stdout, versionLine())
	app.Exit(exitOK)
	return nil
}

func versionLine() string {
	return fmt.Sprintf("mcp-code-sandbox %s (%s, %s/%s)", version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
