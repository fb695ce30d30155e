package jail

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
)

// stage is the directory on which a root server's launcher mounts its stage, in a private mount
// namespace.
const stage = "/mnt"

// launcher is the thread that starts every sandbox. A sandbox dies with it. A root server's thread
// has a mount namespace, where it binds directories to the stage that the sandboxes' uid could not
// reach. The mounts end with the thread, however the server ends.
type launcher struct {
	*proc.Thread

	// Only the thread uses these. covered is nil without a stage.
	covered  *os.File          // the directory under the stage
	staged   map[string]staged // by source
	stagings int               // number of paths used so far
}

// staged is a source on the stage.
type staged struct {
	path     string
	dev, ino uint64 // of the source
}

func newLauncher(withStage bool) (*launcher, error) {
	l := &launcher{Thread: proc.NewThread(), staged: map[string]staged{}}
	if withStage {
		if err := l.Do(l.makeStage); err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

func (l *launcher) close() {
	l.Close()
	_ = l.covered.Close()
}

func (l *launcher) makeStage() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate mounts: %w", err)
	}
	var err error
	if l.covered, err = os.OpenFile(stage, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return fmt.Errorf("the jail needs the directory %s: %w", stage, err)
	}
	if err := unix.Mount("tmpfs", stage, "tmpfs", unix.MS_NOSUID, "size=64k,mode=0755"); err != nil {
		return fmt.Errorf("mount the stage: %w", err)
	}
	return l.lendTun()
}

// lendTun lets slirp4netns, as a network uid, open /dev/net/tun where the host reserves it for
// root: the thread sees a private node there. The device is harmless, since making an interface
// takes a capability in the network namespace.
func (l *launcher) lendTun() error {
	var st unix.Stat_t
	if err := unix.Stat(tun, &st); err != nil || st.Mode&0o006 == 0o006 {
		return nil // if it is missing, a start with network fails
	}
	node := filepath.Join(stage, "tun")
	err := unix.Mknod(node, unix.S_IFCHR|0o600, int(st.Rdev))
	if err == unix.EPERM { // only the machine's root may
		return nil
	}
	if err == nil {
		err = os.Chmod(node, 0o666) // whatever the umask is
	}
	if err == nil {
		err = unix.Mount(node, tun, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("lend %s: %w", tun, err)
	}
	return nil
}

// onStage returns a path by which the sandboxes' uid can reach source, until source is replaced. It
// must run on the thread.
func (l *launcher) onStage(source string) (string, error) {
	if l.covered == nil {
		return source, nil
	}
	var now unix.Stat_t
	if err := unix.Stat(l.uncovered(source), &now); err != nil {
		return "", &os.PathError{Op: "stat", Path: source, Err: err}
	}
	was, ok := l.staged[source]
	if ok && was.dev == now.Dev && was.ino == now.Ino {
		return was.path, nil
	}
	l.stagings++
	path := filepath.Join(stage, "s"+strconv.Itoa(l.stagings))
	if err := l.bind(source, path); err != nil {
		return "", err
	}
	if ok { // the source was replaced, as when a runner is reinstalled
		unbind(was.path)
	}
	l.staged[source] = staged{path, now.Dev, now.Ino}
	return path, nil
}

// lend is onStage for one start: takeBack ends it. In the sandbox, the mapping's uid owns what the
// owner uid owns on disk. It must run on the thread.
func (l *launcher) lend(source, id string, mapping *os.File) (path string, err error) {
	if l.covered == nil {
		return source, nil
	}
	if mapping == nil {
		return lentPath(id), l.bind(source, lentPath(id))
	}
	tree, err := cloneTree(l.uncovered(source), mapping)
	if err != nil {
		return "", err
	}
	defer tree.Close()
	if err := os.Mkdir(lentPath(id), 0o755); err != nil {
		return "", err
	}
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, lentPath(id), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return "", &os.PathError{Op: "move_mount", Path: source, Err: err}
	}
	return lentPath(id), nil
}

// takeBack removes from the stage what was lent for a start.
func (l *launcher) takeBack(id string) {
	_ = l.Do(func() error {
		if l.covered != nil {
			unbind(lentPath(id))
		}
		return nil
	})
}

func lentPath(id string) string { return filepath.Join(stage, "w-"+id) }

// uncovered returns a path to source that the stage does not cover.
func (l *launcher) uncovered(source string) string {
	if rest, ok := strings.CutPrefix(source, stage+"/"); ok {
		return fmt.Sprintf("/proc/self/fd/%d/%s", l.covered.Fd(), rest)
	}
	return source
}

func (l *launcher) bind(source, path string) error {
	source = l.uncovered(source)
	fi, err := os.Stat(source)
	if err != nil {
		return err
	}
	if fi.IsDir() {
		err = os.Mkdir(path, 0o755)
	} else {
		err = os.WriteFile(path, nil, 0o644)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(source, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("bind %s: %w", source, err)
	}
	return nil
}

func unbind(path string) {
	_ = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	_ = os.Remove(path)
}
