// Package proc holds the few Linux process primitives that the agent and the backends share: a
// thread that outlives its jobs, waiting for a child without holding a thread, and reading kernel
// counters. It knows nothing of sandboxes.
package proc

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrThreadClosed is returned by [Thread.Do] after [Thread.Close].
var ErrThreadClosed = errors.New("the thread is closed")

// Thread is an OS thread that calls functions, one at a time. Use it to start processes that must
// die with their parent thread (PDEATHSIG), or to keep its own namespaces. It is never the main
// thread.
type Thread struct {
	jobs chan func()
	quit chan struct{}
	done chan struct{}
}

// NewThread starts a thread. The caller must close it.
func NewThread() *Thread {
	t := &Thread{jobs: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		OnNewThread(t.serve)
	}()
	return t
}

func (t *Thread) serve() {
	for {
		select {
		case job := <-t.jobs:
			job()
		case <-t.quit:
			return
		}
	}
}

// Do calls f on the thread and returns its error, or ErrThreadClosed.
func (t *Thread) Do(f func() error) error {
	errc := make(chan error, 1)
	select {
	case t.jobs <- func() { errc <- f() }:
		return <-errc
	case <-t.done:
		return ErrThreadClosed
	}
}

// Close ends the thread after the job that it is running. Call it once.
func (t *Thread) Close() {
	close(t.quit)
	<-t.done
}

// OnNewThread calls f on a thread that is not the main thread and ends with f. Whatever f changes
// for its thread alone (namespaces, seccomp, Landlock) ends with it.
func OnNewThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if isMainThread() {
			OnNewThread(f)
			runtime.UnlockOSThread()
			return
		}
		f() // stays locked, so the thread ends with this goroutine
	}()
	<-done
}

// AwaitExit returns when a child has exited. It neither reaps the child nor holds a thread
// meanwhile. It returns at once if the kernel cannot watch the child; in that case, the caller's
// own wait blocks.
func AwaitExit(pid int) {
	if f, err := OpenPidfd(pid); err == nil {
		defer f.Close()
		AwaitPidfd(f)
	}
}

// OpenPidfd opens a descriptor of a process, which still means that process after its pid has been
// reused.
func OpenPidfd(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// AwaitPidfd returns when the process, which need not be a child, has exited and has left its
// namespaces, or when f is closed. It holds no thread meanwhile.
func AwaitPidfd(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n != 0 || err != nil && err != unix.EINTR
	})
}

// AwaitExitBlocking is AwaitExit on a held thread. It works on every kernel.
func AwaitExitBlocking(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// HasExited reports whether a child that has not been reaped has exited.
func HasExited(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != nil || info.Signo != 0
}

// ReadSmall reads a file of the kernel that fits into buf, and cuts off the rest. It makes half
// the system calls of os.ReadFile, and a run reads a dozen such files.
func ReadSmall(path string, buf []byte) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		return buf[:n], nil
	}
}

// ReadCounter finds "<name> <number>" in a file of such lines, such as memory.events.
func ReadCounter(path, name string) (n uint64, ok bool) {
	text, err := ReadSmall(path, make([]byte, 1024))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// ReserveThreads makes the Go runtime create n threads, which it keeps when they are idle. The
// runtime ends the program when the kernel refuses it a thread, so a process that must survive a
// full pid limit creates its threads before there is user code.
func ReserveThreads(n int) {
	var all, done sync.WaitGroup
	all.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread() // a thread that waits cannot serve another goroutine
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		})
	}
	done.Wait()
}

// MainSleep is how long EndThread makes the main thread sleep: longer than the Go runtime takes to
// let another thread wait for timers.
const MainSleep = 20 * time.Millisecond

// EndThread ends the calling thread when the calling goroutine ends, and reports whether it does.
// The main thread cannot end. It sleeps instead, and a timer that is due later runs on another.
func EndThread() bool {
	if isMainThread() {
		sleep := unix.NsecToTimespec(MainSleep.Nanoseconds())
		go func() { _ = unix.Nanosleep(&sleep, nil) }()
		return false
	}
	runtime.LockOSThread()
	return true
}

// isMainThread reports whether the caller runs on the main thread, which cannot end before the
// process.
func isMainThread() bool { return unix.Gettid() == os.Getpid() }

// EachNumber calls f with each entry of a directory that is a number, such as a pid in /proc, until
// f returns false. It reads size bytes of entries at a time; a small size gives fresher entries.
func EachNumber(dir, size int, f func(n int) bool) error {
	buf := make([]byte, size)
	var names []string
	for {
		n, err := unix.Getdents(dir, buf)
		if err == unix.EINVAL && len(buf) < 1024 { // the next name is longer
			buf = make([]byte, 1024)
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if number, err := strconv.Atoi(name); err == nil && !f(number) {
				return nil
			}
		}
	}
}
