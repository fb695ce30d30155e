package jail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stage is the directory over which a root server's launcher mounts its stage, in a mount namespace that
// only the launcher sees.
const stage = "/mnt"

// launcher is the OS thread from which every sandbox is started. It lives as long as the backend, because
// a sandbox dies with the thread that started it.
//
// When the server is root, sandboxes are started as another uid, which cannot reach what lies under /root or
// in a closed SANDBOX_ROOT. The launcher then has a mount namespace of its own, in which it binds
// those places to the stage. The mounts end with the thread, however the server ends.
type launcher struct {
	jobs chan func()
	quit chan struct{}
	done chan struct{}

	// Of the thread alone:
	below    *os.File          // what the stage covers
	staged   map[string]staged // by source
	stagings int               // how many there have been
}

// staged is a source on the stage.
type staged struct {
	path     string
	dev, ino uint64 // of the source
}

func newLauncher(private bool) (*launcher, error) {
	l := &launcher{jobs: make(chan func()), quit: make(chan struct{}), done: make(chan struct{}), staged: map[string]staged{}}
	ready := make(chan error)
	go l.run(private, ready, func() {})
	if err := <-ready; err != nil {
		return nil, err
	}
	return l, nil
}

// run is the thread. It calls locked when it has one of its own.
func (l *launcher) run(private bool, ready chan<- error, locked func()) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// The main thread cannot end before the process, and its mounts are what /proc/self shows. While this
		// goroutine holds on to it, the next one gets another.
		other := make(chan struct{})
		go l.run(private, ready, func() { close(other) })
		<-other
		runtime.UnlockOSThread()
		return
	}
	locked()
	defer close(l.done)
	var err error
	if private {
		err = l.makeStage()
	}
	ready <- err
	if err != nil {
		return
	}
	for open := true; open; {
		select {
		case job := <-l.jobs:
			job()
		case <-l.quit:
			open = false
		}
	}
	if l.below != nil {
		_ = l.below.Close()
	}
}

var errClosed = errors.New("the backend is closed")

// do calls f on the launcher's thread and waits for it.
func (l *launcher) do(f func() error) error {
	errc := make(chan error, 1)
	select {
	case l.jobs <- func() { errc <- f() }:
		return <-errc
	case <-l.done:
		return errClosed
	}
}

// close ends the thread. It is called once.
func (l *launcher) close() {
	close(l.quit)
	<-l.done
}

func (l *launcher) makeStage() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate mounts: %w", err)
	}
	below, err := os.OpenFile(stage, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("the jail needs the directory %s: %w", stage, err)
	}
	l.below = below
	if err := unix.Mount("tmpfs", stage, "tmpfs", unix.MS_NOSUID, "size=64k,mode=0755"); err != nil {
		return fmt.Errorf("mount the stage: %w", err)
	}
	return l.lendTun()
}

// lendTun lets SandboxUID open /dev/net/tun, for slirp4netns, where the host gives it to root alone: the
// launcher sees a node of its own there. The device itself is harmless, since an interface needs the
// capability in the network namespace in which it is made.
func (l *launcher) lendTun() error {
	const tun = "/dev/net/tun"
	var st unix.Stat_t
	if err := unix.Stat(tun, &st); err != nil || st.Mode&0o006 == 0o006 {
		return nil // missing: only network: true will say so
	}
	node := filepath.Join(stage, "tun")
	err := unix.Mknod(node, unix.S_IFCHR|0o600, int(st.Rdev))
	if err == nil {
		err = os.Lchown(node, SandboxUID, SandboxUID)
	}
	if err == nil {
		err = unix.Mount(node, tun, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("lend %s: %w", tun, err)
	}
	return nil
}

// onStage returns a path by which the sandbox's uid can reach source, and remembers it. On the thread only.
func (l *launcher) onStage(source string) (string, error) {
	if l.below == nil {
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
	if ok { // another one has taken its place, as when a runner is installed anew
		_ = unix.Unmount(was.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		_ = os.Remove(was.path)
	}
	l.staged[source] = staged{path, now.Dev, now.Ino}
	return path, nil
}

// lend is onStage for one start: the returned function takes the path off the stage. On the thread only.
func (l *launcher) lend(source, name string) (path string, back func(), err error) {
	if l.below == nil {
		return source, func() {}, nil
	}
	path = filepath.Join(stage, name)
	if err := l.bind(source, path); err != nil {
		return "", nil, err
	}
	return path, func() {
		_ = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		_ = os.Remove(path)
	}, nil
}

// uncovered is a path of source that the stage does not cover.
func (l *launcher) uncovered(source string) string {
	if rest, ok := strings.CutPrefix(source, stage+"/"); ok {
		return fmt.Sprintf("/proc/self/fd/%d/%s", l.below.Fd(), rest)
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
