package agent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
)

// WorkspaceFD is the descriptor on which an agent with Config.Expect receives its workspace: a
// packet socket that carries one mount and one answer, WorkspaceAttached or an error.
const WorkspaceFD = 6

// WorkspaceAttached is the agent's answer when it has its workspace.
const WorkspaceAttached = "attached"

// expectWorkspace makes the paths of the workspace shared mounts, so that the workspace reaches a
// run-init that was prestarted, and waits for it in the background.
func expectWorkspace() error {
	for _, path := range sandbox.WorkspacePaths() {
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("prepare %s: %w", path, err)
		}
		if err := unix.Mount("", path, "", unix.MS_SHARED, ""); err != nil {
			return fmt.Errorf("share %s: %w", path, err)
		}
	}
	if err := unix.SetNonblock(WorkspaceFD, true); err != nil {
		return fmt.Errorf("workspace: %w", err)
	}
	go awaitWorkspace(os.NewFile(WorkspaceFD, "workspace"))
	return nil
}

// awaitWorkspace attaches the workspace when it arrives. It returns when the server closes the
// connection.
func awaitWorkspace(conn *os.File) {
	defer conn.Close()
	files, err := proc.ReceiveFiles(conn, 1)
	if errors.Is(err, io.EOF) {
		return
	}
	answer := WorkspaceAttached
	if err == nil {
		err = attachWorkspace(int(files[0].Fd()))
		_ = files[0].Close()
	}
	if err != nil {
		answer = err.Error()
	}
	_, _ = conn.Write([]byte(answer))
}

// attachWorkspace mounts a detached mount at the paths of the workspace.
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
	return confine.SeparateMounts() // run-inits need no more mounts
}
