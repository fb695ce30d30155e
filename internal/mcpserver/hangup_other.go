//go:build !unix

package mcpserver

import "io"

// hungUp returns false: this system reports a lost reader only on write.
func hungUp(io.Writer) bool { return false }
