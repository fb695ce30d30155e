//go:build linux

// Command sandbox-agent is process 1 of a sandbox and the run-init of each run. The server embeds
// it, and backends start it.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/agent/prestart"
	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/netguard"
	"mcp-code-sandbox/internal/version"
)

func main() {
	debug.SetGCPercent(25) // saves memory at the cost of speed: every sandbox has an agent
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[0] == "run-init":
		err = runinit.Main(os.Args[1], "")
	case len(os.Args) == 3 && os.Args[0] == "run-init":
		err = runinit.Main(os.Args[1], os.Args[2])
	case len(os.Args) > 1 && os.Args[0] == "zygote":
		err = prestart.ExecZygote(os.Args[1:])
	case len(os.Args) > 1 && os.Args[0] == "zygote-beside-runs":
		err = prestart.ExecZygoteBesideRuns(os.Args[1:])
	case len(os.Args) == 3 && os.Args[1] == "landlock":
		err = agent.MainLandlock(os.Args[2], version.String())
	case len(os.Args) == 2 && os.Args[0] == "nested":
		err = agent.MainNested(os.Args[1], version.String())
	case len(os.Args) == 3 && os.Args[1] == "guard":
		err = netguard.Guard(os.Args[2], os.Stdout)
	case len(os.Args) == 2 && os.Args[1] == "addresses":
		err = netguard.Describe(os.Stdout)
	case len(os.Args) == 2:
		err = agent.Main(os.Args[1], version.String())
	default:
		err = fmt.Errorf("do not start the agent by hand: the server starts it")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox-agent:", err)
		os.Exit(1)
	}
}
