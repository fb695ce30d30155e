package docker

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/sandbox"
)

// explain turns an engine's failure into an error that says what to do. A done ctx is told as such, with its cause.
func (b *Backend) explain(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	switch {
	case cause != nil && !errors.Is(cause, errHangs):
		return cause // somebody's wish
	case cause != nil:
		return &sandbox.Error{Op: op, Err: cause, Fix: "see whether the engine is well: docker info; restart it if that hangs"}
	}
	var known *sandbox.Error
	if errors.As(err, &known) {
		return err
	}
	text := err.Error()
	fix := ""
	switch {
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EACCES) || strings.Contains(text, "permission denied while trying to connect"):
		fix = "let this user use the engine: sudo usermod -aG docker $USER, then log in anew; or use a rootless engine"
	case b.unreachable(err):
		b.forget()
		fix = "start the engine (systemctl start docker), or set DOCKER_HOST to its address"
	case strings.Contains(text, "client version") && strings.Contains(text, "is too new"):
		fix = "update the engine: Docker 20.10 or newer"
	case strings.Contains(text, "no space left on device"):
		fix = "free disk space on the engine's machine: docker system prune, docker image prune"
	case cerrdefs.IsNotFound(err) && strings.Contains(strings.ToLower(text), "no such image"):
		fix = "build it again: make images; a running server sees new images by itself"
	case strings.Contains(text, "invalid mount config") && strings.Contains(text, "permission denied"):
		fix = "the engine's user cannot reach SANDBOX_ROOT: run the server as the user whose engine it is"
	case strings.Contains(text, "bind source path does not exist"), strings.Contains(text, "Mounts denied"), strings.Contains(text, "not shared"):
		fix = "the engine cannot see SANDBOX_ROOT: if the server is in a container, set SANDBOX_HOST_PATH to the host's path of it; on Docker Desktop, share it (Settings, Resources, File sharing)"
	case strings.Contains(strings.ToLower(text), "unknown runtime"), strings.Contains(text, "unknown or invalid runtime"):
		fix = "set SANDBOX_DOCKER_RUNTIME to a runtime that docker info lists, or unset it"
	}
	return &sandbox.Error{Op: op, Err: err, Fix: fix}
}

// unreachable says whether there was nobody to ask.
func (b *Backend) unreachable(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ENOENT, syscall.ECONNRESET, syscall.EPIPE, fs.ErrNotExist} {
		if errors.Is(err, e) {
			return true
		}
	}
	return client.IsErrConnectionFailed(err) || cerrdefs.IsUnavailable(err)
}

// forget makes the next start ask the engine again what it is: it may come back as another one.
func (b *Backend) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.engine = nil
}
