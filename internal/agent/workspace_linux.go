package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
)

// WorkspaceFD is the descriptor on which an agent whose Config says so hears of its workspace: a packet socket that
// carries one mount, and one answer: WorkspaceAttached, or what went wrong.
const WorkspaceFD = 6

// WorkspaceAttached is the answer of an agent that has its workspace.
const WorkspaceAttached = "attached"

// expectedLife is how long the run-init of a sandbox waits that has no workspace yet: as long as the sandbox.
const expectedLife = 365 * 24 * time.Hour

// separateMounts keeps from the sandbox, and with it from all runs, what the host mounts later.
func separateMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

// expectWorkspace makes the places of the workspace ones from which a mount reaches a run-init that waits already.
func expectWorkspace() error {
	for _, path := range sandbox.WorkspacePaths() {
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("prepare %s: %w", path, err)
		}
		if err := unix.Mount("", path, "", unix.MS_SHARED, ""); err != nil {
			return fmt.Errorf("share %s: %w", path, err)
		}
	}
	return nil
}

// awaitWorkspace takes the workspace of a sandbox that was started before it was known whose it is. It ends with the
// server's end of the connection at the latest.
func awaitWorkspace(conn *os.File) {
	defer conn.Close()
	tree, err := receiveMount(conn)
	if errors.Is(err, io.EOF) {
		return
	}
	answer := WorkspaceAttached
	if err == nil {
		err = attachWorkspace(tree)
		_ = unix.Close(tree)
	}
	if err != nil {
		answer = err.Error()
	}
	_, _ = conn.Write([]byte(answer))
}

func receiveMount(conn *os.File) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	var word [1]byte
	control := make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	var recvErr error
	err = raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, recvErr = unix.Recvmsg(int(fd), word[:], control, unix.MSG_CMSG_CLOEXEC)
		return recvErr != unix.EAGAIN
	})
	if err = errors.Join(err, recvErr); err != nil {
		return -1, err
	}
	if n == 0 {
		return -1, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(control[:oobn])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("no mount came: %w", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("no mount came: %w", err)
	}
	return fds[0], nil
}

// attachWorkspace puts a mount that belongs to no namespace yet where runs look for their workspace.
func attachWorkspace(tree int) error {
	paths := sandbox.WorkspacePaths()
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, paths[0], unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", paths[0], err)
	}
	for _, path := range paths[1:] {
		if err := unix.Mount(paths[0], path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	return separateMounts() // there is nothing more to pass on
}
