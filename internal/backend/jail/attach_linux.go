package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/sandbox"
)

// Prepare implements sandbox.Preparer. A root server can: it alone may make a mount that is in no namespace yet, and hand it
// to an agent, which mounts it where it may mount anything: inside. Kernels before 5.12 lack the calls.
func (b *Backend) Prepare(ctx context.Context, spec sandbox.Spec) (sandbox.Prepared, error) {
	if spec.Workspace != "" {
		return nil, errors.New("prepare a sandbox: it has a workspace already")
	}
	if os.Geteuid() != 0 {
		return nil, errors.ErrUnsupported
	}
	tree, err := cloneTree(b.files) // any directory tells
	for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, passing) {
			return nil, fmt.Errorf("prepare a sandbox: %w", err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	_ = tree.Close()
	s := &jailed{id: spec.ID, backend: b, ended: make(chan struct{})}
	if err := s.start(ctx, spec); err != nil {
		return nil, err
	}
	return s, nil
}

var _ sandbox.Prepared = (*jailed)(nil)

// expectAttach makes the connection over which the agent will get its workspace, and returns the agent's end.
func (s *jailed) expectAttach() (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	s.attach = os.NewFile(uintptr(fds[0]), "workspace")
	return os.NewFile(uintptr(fds[1]), "workspace"), nil
}

// Attach implements sandbox.Prepared.
func (s *jailed) Attach(ctx context.Context, workspace string) error {
	if s.attach == nil {
		return errors.New("attach a workspace: the sandbox was started with one")
	}
	tree, err := cloneTree(workspace)
	if err != nil {
		return fmt.Errorf("attach a workspace: %w", err)
	}
	defer tree.Close()
	if err := s.attach.SetDeadline(time.Now().Add(attachTimeout)); err != nil {
		return fmt.Errorf("attach a workspace: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.attach.SetDeadline(time.Now()) })
	defer stop()
	answer, err := s.sendTree(tree)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("attach a workspace: %w", err)
	case answer != agent.WorkspaceAttached: // the kernel's word, and it will not change its mind
		return fmt.Errorf("attach a workspace: %w: %q", errors.ErrUnsupported, answer)
	}
	return nil
}

func (s *jailed) sendTree(tree *os.File) (answer string, err error) {
	raw, err := s.attach.SyscallConn()
	if err != nil {
		return "", err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), []byte{0}, unix.UnixRights(int(tree.Fd())), nil, unix.MSG_NOSIGNAL)
		return sendErr != unix.EAGAIN
	})
	if err = errors.Join(err, sendErr); err != nil {
		return "", err
	}
	buf := make([]byte, 256)
	n, err := s.attach.Read(buf)
	return string(buf[:n]), err
}

// cloneTree makes a mount of a directory, and of what is mounted below it, that is in no namespace. It has the flags that
// bubblewrap gives a bind, and neither learns of mounts outside nor tells about its own.
func cloneTree(dir string) (*os.File, error) {
	place, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(place)
	fd, err := unix.OpenTree(place, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: dir, Err: err}
	}
	tree := os.NewFile(uintptr(fd), dir)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		_ = tree.Close()
		return nil, &os.PathError{Op: "mount_setattr", Path: dir, Err: err}
	}
	return tree, nil
}

// attachTimeout bounds the wait for an agent's answer. It has two or three system calls to make.
const attachTimeout = 2 * time.Second
