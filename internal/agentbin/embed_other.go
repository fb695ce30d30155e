//go:build !linux || !(amd64 || arm64)

package agentbin

import "embed"

// Sandboxes run on another host, of either architecture.
//
//go:embed bin/sandbox-agent-linux-*
var files embed.FS
