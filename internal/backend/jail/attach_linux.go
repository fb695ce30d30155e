package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
)

// Prepare implements sandbox.Preparer. Only root may make a mount that is in no namespace yet and
// hand it to an agent, which attaches it inside. Kernels before 5.12 lack the system calls.
func (b *Backend) Prepare(ctx context.Context, spec sandbox.Spec) (sandbox.Prepared, error) {
	if spec.Workspace != "" {
		return nil, errors.New("prepare a sandbox: the spec has a workspace")
	}
	if os.Geteuid() != 0 {
		return nil, errors.ErrUnsupported
	}
	tree, err := b.cloneTree(b.files, nil) // any directory will do for a test
	for _, temporary := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, temporary) {
			return nil, fmt.Errorf("prepare a sandbox: %w", err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	_ = tree.Close()
	s, err := b.start(ctx, spec)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return s, nil
}

// Attach implements sandbox.Prepared.
func (s *jailed) Attach(ctx context.Context, workspace string) error {
	if s.attach == nil {
		return errors.New("attach a workspace: the sandbox was started with one")
	}
	mapping, err := s.hold(ctx, workspace)
	if err != nil {
		return fmt.Errorf("attach a workspace: %w", err)
	}
	tree, err := s.backend.cloneTree(workspace, mapping)
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
	case answer != agent.WorkspaceAttached: // the kernel refused, and will again
		return fmt.Errorf("attach a workspace: %w: %q", errors.ErrUnsupported, answer)
	}
	return nil
}

// hold makes the workspace belong to the sandbox until that ends.
func (s *jailed) hold(ctx context.Context, workspace string) (mapping *os.File, err error) {
	id := s.backend.ids.join(s.identity) // so that the place is released before the identity
	if id == nil {
		return nil, errors.New("the sandbox has ended")
	}
	defer s.backend.ids.release(id)
	mapping, at, err := s.backend.places.hold(ctx, workspace, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		s.backend.places.release(at)
		return nil, errors.New("the sandbox has ended")
	}
	s.place = at
	return mapping, err
}

// sendTree sends the mount to the agent and returns its answer.
func (s *jailed) sendTree(tree *os.File) (answer string, err error) {
	if err := proc.SendFiles(s.attach, "\x00", tree); err != nil {
		return "", err
	}
	buf := make([]byte, 256)
	n, err := s.attach.Read(buf)
	return string(buf[:n]), err
}

// cloneTree clones on the launcher's thread: a server in an outer namespace may only clone the
// mounts of its launcher.
func (b *Backend) cloneTree(dir string, mapping *os.File) (tree *os.File, err error) {
	err = b.launch.Do(func() error {
		tree, err = cloneTree(b.launch.uncovered(dir), mapping)
		return err
	})
	return tree, err
}

// cloneTree makes a mount of a directory and everything mounted below it that is in no namespace.
// It is private and has the flags that bubblewrap gives a bind mount. If mapping is not nil, the
// mount shows the ids that this user namespace maps those on disk to.
func cloneTree(dir string, mapping *os.File) (*os.File, error) {
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
	if mapping != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(mapping.Fd())
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		_ = tree.Close()
		return nil, &os.PathError{Op: "mount_setattr", Path: dir, Err: err}
	}
	return tree, nil
}

// attachTimeout bounds the wait for the agent's answer. The agent makes two or three system calls.
const attachTimeout = 2 * time.Second
