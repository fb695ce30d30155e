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

// explain adds advice to an engine's error. If ctx is done, it returns the cause instead.
func (b *Backend) explain(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	switch {
	case cause != nil && !errors.Is(cause, errHangs):
		return cause // the caller no longer wants it
	case cause != nil:
		return &sandbox.Error{Op: op, Err: cause, Fix: "check the engine with docker info; restart it if that hangs"}
	}
	if known := (*sandbox.Error)(nil); errors.As(err, &known) {
		return err
	}
	if b.unreachable(err) {
		b.forget()
	}
	return &sandbox.Error{Op: op, Err: err, Fix: b.advice(err)}
}

// advice returns what to do about an error. Where the engine describes a failure only in words, the
// words choose the advice. They never decide what the program does.
func (b *Backend) advice(err error) string {
	text := strings.ToLower(err.Error())
	has := func(words string) bool { return strings.Contains(text, words) }
	switch {
	case errors.Is(err, fs.ErrPermission), has("permission denied while trying to connect"):
		return "let this user use the engine: sudo usermod -aG docker $USER, then log in again; or use a rootless engine"
	case b.unreachable(err):
		return "start the engine (systemctl start docker), or set DOCKER_HOST to its address"
	case has("client version") && has("is too new"):
		return "update the engine: Docker 20.10 or newer"
	case has("no space left on device"):
		return "free disk space on the engine's machine: docker system prune, docker image prune"
	case cerrdefs.IsNotFound(err) && has("no such image"):
		return "build it again: make images; a running server sees new images by itself"
	case has("invalid mount config") && has("permission denied"):
		return "the engine's user cannot reach SANDBOX_ROOT: run the server as the user whose engine it is"
	case has("bind source path does not exist"), has("mounts denied"), has("not shared"):
		return "the engine cannot see SANDBOX_ROOT: if the server is in a container, set SANDBOX_HOST_PATH to the host's " +
			"path of it; on Docker Desktop, share it (Settings, Resources, File sharing)"
	case has("unknown runtime"), has("unknown or invalid runtime"):
		return "set SANDBOX_DOCKER_RUNTIME to a runtime that docker info lists, or unset it"
	}
	return ""
}

// unreachable reports whether the engine did not get the request.
func (b *Backend) unreachable(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ENOENT, syscall.ECONNRESET, syscall.EPIPE, fs.ErrNotExist} {
		if errors.Is(err, e) {
			return true
		}
	}
	return client.IsErrConnectionFailed(err) || cerrdefs.IsUnavailable(err)
}
