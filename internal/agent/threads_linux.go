package agent

import (
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// The Go runtime ends the program when the kernel refuses it a thread. A run that has used up the sandbox's
// processes must not end the agent so, nor make its own init report anything but the truth: both make the
// threads they can come to need before there is user code, and keep few of them busy.
const (
	maxProcs    = 2
	maxStarting = 2 // starts of runs at the same time: each holds a thread until the exec
	agentSpare  = 12
	initSpare   = 5 // one of them may end with the start of the program
)

// spareThreads makes the runtime create n threads; it keeps them when they have nothing to do.
func spareThreads(n int) {
	runtime.GOMAXPROCS(maxProcs)
	var all, done sync.WaitGroup
	all.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread() // a thread that waits cannot serve another
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		})
	}
	done.Wait()
}

// ended waits for the end of a child that has not been waited for, without holding a thread.
func ended(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // the caller's Wait will hold one
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return
	}
	f := os.NewFile(uintptr(fd), "run-init")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n != 0 || err != nil && err != unix.EINTR
	})
}
