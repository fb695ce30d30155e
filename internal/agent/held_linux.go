package agent

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// maxDescriptors limits the descriptors that one call reads, since user code can open any number.
const maxDescriptors = 100_000

// HeldFiles returns the size of the files on the workspace's file system that are deleted but still
// open in the sandbox. root is the sandbox's root as the caller sees it. It skips processes for
// which own returns true: they run no user code.
func HeldFiles(root string, own func(pid int) bool) (sandbox.Held, error) {
	var ws unix.Stat_t
	if err := unix.Stat(root+sandbox.WorkspaceDir, &ws); err != nil {
		return sandbox.Held{}, fmt.Errorf("inspect the workspace: %w", err)
	}
	procDir, err := unix.Open(root+"/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return sandbox.Held{}, fmt.Errorf("list processes: %w", err)
	}
	defer unix.Close(procDir)
	h := heldFiles{dev: ws.Dev, uid: ws.Uid, seen: map[uint64]bool{}, left: maxDescriptors}
	err = proc.EachNumber(procDir, 8<<10, func(pid int) bool {
		if !own(pid) {
			h.process(procDir, strconv.Itoa(pid))
		}
		return h.left > 0
	})
	if err != nil || h.left <= 0 {
		h.Hidden = true
	}
	return h.Held, nil
}

// heldFiles answers a run frame that asks for them.
func (a *agent) heldFiles() wire.Exit {
	held, err := HeldFiles("", func(pid int) bool { return pid == os.Getpid() || a.launcher.Owns(pid) })
	if err != nil {
		held.Hidden = true
	}
	return wire.Exit{HeldBytes: held.Bytes, HeldMore: held.Hidden}
}

type heldFiles struct {
	sandbox.Held
	dev  uint64
	uid  uint32
	seen map[uint64]bool // inodes
	left int             // descriptors that may still be read
}

func (h *heldFiles) process(procDir int, pid string) {
	dir, err := unix.Openat(procDir, pid+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		h.Hidden = h.Hidden || err == unix.EACCES || err == unix.EPERM
		return
	}
	defer unix.Close(dir)
	err = proc.EachNumber(dir, 8<<10, func(fd int) bool {
		h.descriptor(procDir, dir, pid, strconv.Itoa(fd))
		h.left--
		return h.left > 0
	})
	if err == unix.EACCES || err == unix.EPERM {
		h.Hidden = true
	}
	h.mappings(procDir, pid)
}

func (h *heldFiles) descriptor(procDir, dir int, pid, fd string) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, fd, &st, 0); err != nil {
		h.Hidden = h.Hidden || err == unix.EACCES || err == unix.EPERM
		return
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFSOCK:
		h.Hidden = h.Hidden || carriesFiles(procDir, pid+"/fdinfo/"+fd)
	case st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0:
		h.add(&st)
	}
}

func (h *heldFiles) add(st *unix.Stat_t) {
	if st.Dev == h.dev && st.Uid == h.uid && !h.seen[st.Ino] {
		h.seen[st.Ino] = true
		h.Bytes += st.Blocks * 512
	}
}

// carriesFiles reports whether descriptors wait in a socket to be received.
func carriesFiles(procDir int, info string) bool {
	text := readAt(procDir, info, 4096)
	_, rest, found := bytes.Cut(text, []byte("scm_fds:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return found && string(bytes.TrimSpace(line)) != "0"
}

// mappings looks at files that are mapped, which need not be open. Only the host's root can tell
// their size.
func (h *heldFiles) mappings(procDir int, pid string) {
	maps := readAt(procDir, pid+"/maps", 1<<20)
	for line := range bytes.Lines(maps) {
		if !bytes.HasSuffix(line, []byte(" (deleted)\n")) {
			continue
		}
		f := bytes.Fields(line)
		if len(f) < 6 {
			continue
		}
		inode, err := strconv.ParseUint(string(f[4]), 10, 64)
		if err != nil || h.seen[inode] || !h.onWorkspace(f[3]) {
			continue
		}
		dir, err := unix.Openat(procDir, pid+"/map_files", unix.O_PATH|unix.O_CLOEXEC, 0)
		var st unix.Stat_t
		if err == nil {
			err = unix.Fstatat(dir, string(f[0]), &st, 0)
			_ = unix.Close(dir)
		}
		if err != nil {
			h.Hidden = true
		} else if st.Nlink == 0 && st.Mode&unix.S_IFMT == unix.S_IFREG {
			h.add(&st)
		}
	}
	h.Hidden = h.Hidden || len(maps) == 1<<20
}

// onWorkspace reports whether a mapping's device, in hexadecimal, is that of the workspace.
func (h *heldFiles) onWorkspace(device []byte) bool {
	return string(device) == fmt.Sprintf("%02x:%02x", unix.Major(h.dev), unix.Minor(h.dev))
}

// readAt reads a small file, or as much of it as fits.
func readAt(dir int, name string, most int) []byte {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var text []byte
	buf := make([]byte, min(most, 32<<10))
	for len(text) < most {
		n, err := unix.Read(fd, buf[:min(len(buf), most-len(text))])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			break
		}
		text = append(text, buf[:n]...)
	}
	return text
}
