package agentbin

import "embed"

// Sandboxes on this host need the agent for this architecture only.
//
//go:embed bin/sandbox-agent-linux-arm64*
var files embed.FS
