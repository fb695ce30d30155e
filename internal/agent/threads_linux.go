package agent

import (
	"runtime"
	"sync"
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
