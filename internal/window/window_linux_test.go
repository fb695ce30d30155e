package window

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mcp-code-sandbox/internal/logging/logtest"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake starts servers in this process. They answer each line with "<n> <line>", n being the number
// of the server.
type fake struct {
	t          *testing.T
	path       string
	linger     time.Duration
	fail       error // of the start
	starts     atomic.Int32
	ended      chan struct{} // one for each server that has ended
	timeout    time.Duration // of writes
	firstLines int           // of its log, beside the first
}

func newFake(t *testing.T) *fake {
	return &fake{t: t, path: filepath.Join(t.TempDir(), strings.Repeat("long", 40), "stdio"), linger: time.Hour, timeout: writeTimeout, ended: make(chan struct{}, 100)}
}

func (f *fake) dir() *Dir {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		f.t.Fatal(err)
	}
	d, err := OpenDir(f.path)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { d.Close() })
	return d
}

func (f *fake) start(l, _ *os.File) error {
	n := f.starts.Add(1)
	fd, err := syscall.Dup(int(l.Fd()))
	if err != nil {
		return err
	}
	dir, err := OpenDir(f.path)
	if err != nil {
		return err
	}
	s, err := newServer(dir, "id", os.NewFile(uintptr(fd), "listener"), f.timeout)
	if err != nil {
		return err
	}
	go func() {
		defer func() { f.ended <- struct{}{} }()
		fmt.Fprintf(s, "server %d starts\n", n)
		for i := range f.firstLines {
			fmt.Fprintf(s, "server %d starts: %d\n", n, i)
		}
		if f.fail != nil {
			s.Fail(f.fail)
			return
		}
		s.Serve(context.Background(), f.linger, func(_ context.Context, in io.ReadCloser, out io.WriteCloser) error {
			defer in.Close()
			for sc := bufio.NewScanner(in); sc.Scan(); {
				fmt.Fprintf(s, "log of %s\n", sc.Text())
				if _, err := fmt.Fprintf(out, "%d %s\n", n, sc.Text()); err != nil {
					return err
				}
			}
			return nil
		})
		for i := range lastLines {
			fmt.Fprintf(s, "server %d ends: %d\n", n, i)
		}
		s.Close()
	}()
	return nil
}

const lastLines = 100 // of a server's log

func (f *fake) join(d *Dir, logs io.Writer) *Conn {
	f.t.Helper()
	c, err := d.Join(f.t.Context(), "id", f.start, logs)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

func (f *fake) stop(d *Dir, want int) {
	f.t.Helper()
	if n, err := d.Stop(f.t.Context()); n != want || err != nil {
		f.t.Errorf("Stop ended %d servers, %v; want %d", n, err, want)
	}
	for range want {
		<-f.ended
	}
}

func ask(t *testing.T, c *Conn, line, want string) {
	t.Helper()
	if err := c.Send([]byte(line + "\n")); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Receive(); err != nil || string(got) != want+"\n" {
		t.Fatalf("answer to %s: %q, %v; want %q", line, got, err, want)
	}
}

// TestShare: windows that join at once have one server, all of its log, and each its own answers.
func TestShare(t *testing.T) {
	f := newFake(t)
	conns := make([]*Conn, 8)
	logs := make([]*logtest.Buffer, len(conns))
	var wg sync.WaitGroup
	for i := range conns {
		logs[i] = &logtest.Buffer{}
		d := f.dir()
		wg.Go(func() { conns[i] = f.join(d, logs[i]) })
	}
	wg.Wait()
	if n := f.starts.Load(); n != 1 {
		t.Fatalf("%d servers were started", n)
	}
	for i, c := range conns {
		ask(t, c, fmt.Sprint("line ", i), fmt.Sprint("1 line ", i))
		ask(t, c, strings.Repeat("x", 1000), "1 "+strings.Repeat("x", 1000))
	}
	d := f.dir()
	f.stop(d, 1)
	for i, c := range conns {
		if _, err := c.Receive(); err == nil || !c.Stopped() {
			t.Errorf("window %d: %v, stopped %v", i, err, c.Stopped())
		}
		last := fmt.Sprintf("server 1 ends: %d\n", lastLines-1)
		if log := logs[i].String(); !strings.HasPrefix(log, "server 1 starts\n") || !strings.Contains(log, "log of line 7\n") || !strings.HasSuffix(log, last) {
			t.Errorf("log of window %d: %s", i, log)
		}
	}
	if left, err := os.ReadDir(f.path); err != nil || len(left) != 1 || left[0].Name() != stderrName {
		t.Errorf("left: %v, %v", left, err)
	}
	ask(t, f.join(d, io.Discard), "again", "2 again")
	f.stop(d, 1)
	f.stop(d, 0)
}

// TestStartLog: a window that leaves as soon as it can has the whole log of the start.
func TestStartLog(t *testing.T) {
	f := newFake(t)
	f.firstLines = 200
	d := f.dir()
	for range 20 {
		log := &logtest.Buffer{}
		f.join(d, log).Close()
		if want := fmt.Sprintf("server 1 starts: %d\n", f.firstLines-1); !strings.HasSuffix(log.String(), want) {
			t.Fatalf("the log ends with %q", log.String()[max(0, len(log.String())-60):])
		}
	}
	f.stop(d, 1)
}

// TestLinger: a server ends when the last window has been gone for the time of linger.
func TestLinger(t *testing.T) {
	f := newFake(t)
	f.linger = 500 * time.Millisecond
	d := f.dir()
	a := f.join(d, io.Discard)
	b := f.join(d, io.Discard)
	a.Close()
	ask(t, b, "still", "1 still")
	b.Close()
	<-f.ended
	ask(t, f.join(d, io.Discard), "new", "2 new")
	f.stop(d, 1)
}

// TestRemovedSocket: a server that nobody can join ends as soon as it has no window, and does not
// remove the socket of the next one.
func TestRemovedSocket(t *testing.T) {
	f := newFake(t)
	d := f.dir()
	first := f.join(d, io.Discard)
	if err := os.Remove(filepath.Join(f.path, "id"+socketSuffix)); err != nil {
		t.Fatal(err)
	}
	second := f.join(d, io.Discard)
	ask(t, second, "x", "2 x")
	ask(t, first, "x", "1 x")
	first.Close()
	<-f.ended
	ask(t, f.join(d, io.Discard), "y", "2 y")
	f.stop(d, 1)
}

// TestPlanted: anything else under the socket's name is replaced, never followed or connected to.
func TestPlanted(t *testing.T) {
	for name, plant := range map[string]func(path string) error{
		"file":    func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"fifo":    func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"nowhere": func(path string) error { return os.Symlink("nowhere", path) },
		"loop":    func(path string) error { return os.Symlink(path, path) },
		"stale": func(path string) error {
			t.Chdir(filepath.Dir(path)) // the path is too long for an address
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Base(path), Net: "unix"})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return l.Close()
		},
		"link to a socket": func(path string) error {
			other := filepath.Join(filepath.Dir(path), "o")
			t.Chdir(filepath.Dir(path))
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "o", Net: "unix"})
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				if c, err := l.Accept(); err == nil {
					t.Error("the window connected to the target of a link")
					c.Close()
				}
			}()
			return os.Symlink(other, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			d := f.dir()
			if err := plant(filepath.Join(f.path, "id"+socketSuffix)); err != nil {
				t.Fatal(err)
			}
			ask(t, f.join(d, io.Discard), "x", "1 x")
			f.stop(d, 1)
		})
	}
}

// TestUnavailable: where no server can be shared, the window learns why, and nothing is started.
func TestUnavailable(t *testing.T) {
	join := func(t *testing.T, path, want string) {
		t.Helper()
		d, err := OpenDir(path)
		if err == nil {
			defer d.Close()
			_, err = d.Join(t.Context(), "id", func(_, _ *os.File) error { t.Error("a server was started"); return nil }, io.Discard)
		}
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	path := func(t *testing.T) string { return filepath.Join(t.TempDir(), "stdio") }
	t.Run("mode", func(t *testing.T) {
		p := path(t)
		if err := errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o750)); err != nil {
			t.Fatal(err)
		}
		join(t, p, "other users have access")
	})
	t.Run("link", func(t *testing.T) {
		p := path(t)
		if err := os.Symlink(t.TempDir(), p); err != nil {
			t.Fatal(err)
		}
		join(t, p, "stdio")
	})
	t.Run("file", func(t *testing.T) {
		p := path(t)
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		join(t, p, "not a directory")
	})
	t.Run("no parent", func(t *testing.T) { join(t, filepath.Join(path(t), "stdio"), "no such file") })
	t.Run("no sockets", func(t *testing.T) { // as on a file system without them
		p := path(t)
		if err := os.MkdirAll(filepath.Join(p, "id"+socketSuffix, "full"), 0o700); err != nil {
			t.Fatal(err)
		}
		join(t, p, "address already in use")
	})
	t.Run("stderr is a link", func(t *testing.T) {
		p := path(t)
		if err := errors.Join(os.Mkdir(p, 0o700), os.Symlink("/dev/null", filepath.Join(p, stderrName))); err != nil {
			t.Fatal(err)
		}
		join(t, p, "too many levels of symbolic links")
		if left, err := os.ReadDir(p); err != nil || len(left) != 1 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
	t.Run("silent server", func(t *testing.T) {
		p := path(t)
		d, err := OpenDir(p)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.place("id" + socketSuffix), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		go func() { // it ends before it answers, each time
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		defer l.Close()
		join(t, p, "ends as soon as it is joined")
	})
}

// TestStartFails: windows learn why their server cannot start, after its log.
func TestStartFails(t *testing.T) {
	f := newFake(t)
	f.fail = errors.New("no engine")
	d := f.dir()
	logs := &logtest.Buffer{}
	_, err := d.Join(t.Context(), "id", f.start, logs)
	if start, ok := errors.AsType[*StartError](err); !ok || start.Reason != "no engine" || logs.String() != "server 1 starts\n" {
		t.Errorf("%v; log %q", err, logs)
	}
	<-f.ended
	for name, start := range map[string]Start{
		"cannot be started": func(_, _ *os.File) error { return errors.New("no memory") },
		"ended at once":     func(_, _ *os.File) error { return nil },
	} {
		_, err := d.Join(t.Context(), "id", start, io.Discard)
		if _, ok := errors.AsType[*StartError](err); !ok || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), f.path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.fail = nil
	ask(t, f.join(d, io.Discard), "x", "2 x")
	f.stop(d, 1)
}

// TestSlowWindow: a window that does not read is dropped, and costs others nothing.
func TestSlowWindow(t *testing.T) {
	f := newFake(t)
	f.timeout = 2 * time.Second // on a busy machine, the other one may pause for long
	d := f.dir()
	slow, other := f.join(d, io.Discard), f.join(d, io.Discard)
	flooded := make(chan error, 1)
	go func() {
		line := append(bytes.Repeat([]byte("x"), 60<<10), '\n')
		for {
			if err := slow.Send(line); err != nil {
				flooded <- err
				return
			}
		}
	}()
	for i := range 100 {
		ask(t, other, fmt.Sprint(i), fmt.Sprint("1 ", i))
	}
	<-flooded // the server has dropped it
	ask(t, other, "x", "1 x")
	slow.Close()
	f.stop(d, 1)
}

// TestStuckStderr: a window whose log nobody reads still gets its messages.
func TestStuckStderr(t *testing.T) {
	f := newFake(t)
	d := f.dir()
	reader, writer := io.Pipe()
	logs := NewLogs(writer)
	c := f.join(d, logs)
	for i := range 3 * maxLogLines {
		ask(t, c, fmt.Sprint(i), fmt.Sprint("1 ", i))
	}
	reader.Close()
	logs.Close()
	f.stop(d, 1)
}

// TestOtherUser: neither end talks to a process of another user, even if that can reach the socket.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "only root can become another user")
		return
	}
	const otherUID = 12345
	// as runs f in a thread of another user. The thread ends with it.
	as := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), otherUID, ^uintptr(0)); errno != 0 {
				t.Error(errno)
				return
			}
			f()
		}()
		<-done
	}
	f := newFake(t)
	d := f.dir()
	c := f.join(d, io.Discard)
	if err := errors.Join(os.Chmod(f.path, 0o777), os.Chmod(filepath.Join(f.path, "id"+socketSuffix), 0o777)); err != nil {
		t.Fatal(err)
	}
	as(func() {
		socket, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: d.place("id" + socketSuffix), Net: "unix"})
		if err != nil {
			t.Error(err)
			return
		}
		defer socket.Close()
		_, _ = socket.Write(encode(hello{Stop: true}))
		if n, err := socket.Read(make([]byte, 1)); err == nil {
			t.Errorf("the server answers another user: %d", n)
		}
	})
	ask(t, c, "x", "1 x")
	f.stop(d, 1)

	var l *net.UnixListener
	as(func() {
		var err error
		if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: d.place("id" + socketSuffix), Net: "unix"}); err != nil {
			t.Error(err)
		}
	})
	if l == nil {
		return
	}
	defer l.Close()
	_, err := d.Join(t.Context(), "id", f.start, io.Discard)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), fmt.Sprint(otherUID)) {
		t.Errorf("another user's socket: %v", err)
	}
}
