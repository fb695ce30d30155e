//go:build !linux || !(amd64 || arm64)

package agentbin

import "embed"

// The sandboxes of this host run elsewhere, on either architecture.
//
//go:embed bin/sandbox-agent-linux-*
var files embed.FS
