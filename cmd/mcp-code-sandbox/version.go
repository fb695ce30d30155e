package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the build: -ldflags "-X main.version=1.2.3".
var version = ""

type versionCmd struct{}

func (*versionCmd) Run(inv *invocation) error {
	fmt.Fprintf(inv.stdout, "mcp-code-sandbox %s (%s, %s/%s)\n", versionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
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
