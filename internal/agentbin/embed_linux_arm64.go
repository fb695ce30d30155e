package agentbin

import "embed"

// A sandbox on this host needs the agent of this architecture alone.
//
//go:embed bin/sandbox-agent-linux-arm64*
var files embed.FS
