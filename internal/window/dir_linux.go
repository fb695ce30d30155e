package window

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/filelock"
)

const (
	socketSuffix = ".sock"
	stderrName   = "stderr" // what all servers write to their standard error, such as a crash
	maxStderr    = 1 << 20  // beyond that size, the next start truncates it
	// answerTimeout bounds the wait for a server to say that it is there, and for the lock. Both
	// take milliseconds.
	answerTimeout = 10 * time.Second
	maxTries      = 5
)

// Dir is the directory of the sockets of one data directory. Its lock orders the starts and the
// ends of servers.
type Dir struct {
	path string
	file *os.File
}

// OpenDir makes the directory if it does not exist. Only this user may have access to it. The error
// is ErrUnavailable.
func OpenDir(path string) (*Dir, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, unavailable("%w", err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, unavailable("%w", err)
	}
	d := &Dir{path, f}
	fi, err := f.Stat()
	switch {
	case err != nil:
	case int(fi.Sys().(*syscall.Stat_t).Uid) != os.Geteuid():
		err = fmt.Errorf("%s belongs to another user", path)
	case fi.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("other users have access to %s; try: chmod 700 %[1]s", path)
	}
	if err != nil {
		f.Close()
		return nil, unavailable("%w", err)
	}
	return d, nil
}

// Close closes the directory. Connections stay open.
func (d *Dir) Close() error { return d.file.Close() }

// lock waits for the lock, up to answerTimeout.
func (d *Dir) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.Open(d.place(".")) // a lock belongs to an open file, so each needs its own
	if err != nil {
		return nil, unavailable("%w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := filelock.TryLock(f)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, filelock.ErrLocked) {
			f.Close()
			return nil, unavailable("lock %s: %w", d.path, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Close()
			return nil, unavailable("another process holds the lock of %s", d.path)
		}
	}
}

// place returns the path of a file in the directory, through its descriptor: the address of a
// socket has at most 107 bytes, and the directory cannot be exchanged.
func (d *Dir) place(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.file.Fd(), name)
}

// Start starts a detached process that serves l, with stderr as its standard error. It returns when
// the process has both.
type Start func(l, stderr *os.File) error

// Join connects to the server with that id, and starts it if there is none. It returns when the
// server is ready. Log lines go to logs. The error may be ErrUnavailable or a StartError.
func (d *Dir) Join(ctx context.Context, id string, start Start, logs io.Writer) (*Conn, error) {
	for range maxTries {
		socket, err := d.connect(ctx, id, start)
		if err != nil {
			return nil, err
		}
		c := newConn(ctx, socket, logs)
		err = c.open(hello{})
		if err == nil {
			if err = c.awaitReady(); errors.Is(err, io.ErrUnexpectedEOF) {
				err = &StartError{"the shared server ended while it started; see " + filepath.Join(d.path, stderrName)}
			}
		}
		if err == nil {
			return c, nil
		}
		c.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !errors.Is(err, errGone) {
			return nil, err
		}
	}
	return nil, unavailable("the shared server ends as soon as it is joined")
}

// connect connects to the server's socket. Under the lock, it starts a server if there is none.
func (d *Dir) connect(ctx context.Context, id string, start Start) (*net.UnixConn, error) {
	socket, err := d.dial(id)
	if socket != nil || err != nil {
		return socket, err
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if socket, err = d.dial(id); socket != nil || err != nil {
		return socket, err // another window was faster
	}
	if err := d.start(id, start); err != nil {
		return nil, err
	}
	socket, err = d.dial(id)
	if socket == nil && err == nil {
		err = &StartError{"the shared server ended at once; see " + filepath.Join(d.path, stderrName)}
	}
	return socket, err
}

// dial returns nil if there is no server. It does not follow links.
func (d *Dir) dial(id string) (*net.UnixConn, error) {
	if fi, err := os.Lstat(d.place(id + socketSuffix)); err != nil || fi.Mode().Type() != fs.ModeSocket {
		return nil, nil
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: d.place(id + socketSuffix), Net: "unix"})
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil
	case err != nil:
		return nil, unavailable("%w", err)
	}
	if err := checkPeer(conn); err != nil {
		conn.Close()
		return nil, unavailable("%w", err)
	}
	return conn, nil
}

// start listens, and hands the socket to a new process: windows can connect before it runs.
func (d *Dir) start(id string, start Start) error {
	d.sweep()
	name := d.place(id + socketSuffix)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return unavailable("%w", err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	var file, stderr *os.File
	defer func() {
		_ = file.Close()
		_ = stderr.Close()
	}()
	if err = os.Chmod(name, 0o600); err == nil {
		file, err = l.File()
	}
	if err == nil {
		stderr, err = d.openStderr()
	}
	if err != nil {
		_ = os.Remove(name)
		return unavailable("%w", err)
	}
	if err := start(file, stderr); err != nil {
		_ = os.Remove(name)
		return &StartError{fmt.Sprintf("the shared server cannot be started: %v; see %s", err, filepath.Join(d.path, stderrName))}
	}
	return nil
}

func (d *Dir) openStderr() (*os.File, error) {
	const flags = os.O_WRONLY | os.O_APPEND | os.O_CREATE | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	f, err := os.OpenFile(d.place(stderrName), flags, 0o600)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err == nil && fi.Size() > maxStderr {
		_ = f.Truncate(0)
	}
	return f, nil
}

// sweep removes what servers left that did not end by themselves. It needs the lock.
func (d *Dir) sweep() {
	ids, _ := d.ids()
	for _, id := range ids {
		if socket, err := d.dial(id); socket != nil {
			socket.Close()
		} else if err == nil {
			_ = os.Remove(d.place(id + socketSuffix))
		}
	}
}

func (d *Dir) ids() (ids []string, err error) {
	entries, err := os.ReadDir(d.place("."))
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), socketSuffix); ok {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Stop ends every server of the directory, waits until they have ended, and returns their number.
func (d *Dir) Stop(ctx context.Context) (n int, err error) {
	ids, err := d.ids()
	errs := []error{err}
	for _, id := range ids {
		socket, err := d.dial(id)
		if socket == nil {
			errs = append(errs, err)
			continue
		}
		c := newConn(ctx, socket, io.Discard)
		if err := c.open(hello{Stop: true}); err == nil {
			for err == nil {
				_, err = c.Receive() // until the server has ended
			}
			n++
		} else if !errors.Is(err, errGone) {
			errs = append(errs, err)
		}
		c.Close()
	}
	return n, errors.Join(append(errs, ctx.Err())...)
}

// checkPeer returns an error unless the other end belongs to this user. The kernel translates its
// uid to this process's user namespace, so that both ends compare with their own.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the socket's other end belongs to the user %d, not to %d", cred.Uid, os.Geteuid())
	}
	return nil
}

func encode(v any) []byte {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err) // structs of strings always encode
	}
	return append(line, '\n')
}
