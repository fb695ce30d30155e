package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

// version is set by the build: -ldflags "-X main.version=1.2.3".
var version = ""

type versionCmd struct{}

func (*versionCmd) Run(inv *invocation) error {
	fmt.Fprintln(inv.stdout, versionLine())
	return nil
}

// versionFlag is --version, which needs no command.
type versionFlag bool

// BeforeReset is called by kong when it has read the flag, before it asks for a command.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	fmt.Fprintln(app.Stdout, versionLine())
	app.Exit(exitOK)
	return nil
}

func versionLine() string {
	return fmt.Sprintf("mcp-code-sandbox %s (%s, %s/%s)", versionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// versionString is the release's version, or what the toolchain recorded of the checkout.
func versionString() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
