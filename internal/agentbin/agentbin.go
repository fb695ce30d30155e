// Package agentbin embeds the built agent, the program that is process 1 of every sandbox. "make
// build" puts it into bin/ before it builds the server. A server built without it (go build in a
// fresh clone) cannot start sandboxes.
package agentbin

import (
	"errors"
	"fmt"
	"io/fs"
)

// ErrNotBuilt means that the server was built without the agent.
var ErrNotBuilt = errors.New("built without the agent: run make build")

// Binary returns the agent, a static Linux executable, for an architecture ("amd64", "arm64"). It
// returns ErrNotBuilt if the server was built without the agent.
func Binary(goarch string) ([]byte, error) {
	return read(files, goarch)
}

func read(files fs.FS, goarch string) ([]byte, error) {
	b, err := fs.ReadFile(files, "bin/sandbox-agent-linux-"+goarch)
	switch {
	case err == nil:
		return b, nil
	case goarch != "amd64" && goarch != "arm64":
		return nil, fmt.Errorf("no agent for linux/%s: only amd64 and arm64 are supported", goarch)
	}
	return nil, ErrNotBuilt
}
