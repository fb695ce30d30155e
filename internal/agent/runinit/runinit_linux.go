// Package runinit is run-init: process 1 of a run's namespaces or, where runs share a pid
// namespace, the parent of everything in its run. It confines itself, waits for its [Spec], starts
// the program or adopts one that a zygote forked, serves the cells of an interpreter, and reports a
// [Status].
//
// No user process shares a descriptor or a capability with it. It knows neither the server nor
// other runs.
package runinit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/wire"
)

// Descriptors of run-init, in addition to the run's own 0, 1 and 2.
const (
	specFD    = 3
	statusFD  = 4
	channelFD = 5
	emptyFD   = 6 // with a directory for /proc: the agent's empty mount namespace, to hide mounts
	gateFD    = 6 // of a run-init that a zygote made: lets the program continue
	driverFD  = 7 // of a run-init that a zygote made for an interpreter
)

// SharedPIDs is run-init's first argument where runs share a pid namespace. Otherwise that is the
// size of the run's /tmp. The second argument, if any, is the directory for its /proc.
const SharedPIDs = "shared-pids"

// OneProcessor is run-init's environment. It makes the Go runtime start three threads, which are
// enough until run-init waits for a child or serves cells: the runtime ends a program that cannot
// start a thread.
const OneProcessor = "GOMAXPROCS=1"

// Main is run-init's main function. When it returns and the process exits, the kernel kills the
// rest of the run's pid namespace; with SharedPIDs, the agent does.
func Main(where, procDir string) error {
	debug.SetGCPercent(-1) // a collection may need another thread; a run makes little garbage
	for _, fd := range []int{specFD, statusFD, channelFD} {
		unix.CloseOnExec(fd)
	}
	if procDir != "" {
		unix.CloseOnExec(emptyFD)
	}
	status, err := serve(where, procDir)
	if err != nil {
		status = Status{Exit: wire.Exit{Code: 126, Error: err.Error()}}
	}
	f := os.NewFile(statusFD, "status")
	return errors.Join(json.NewEncoder(f).Encode(status), f.Close())
}

func serve(where, procDir string) (Status, error) {
	init, err := start(where, procDir)
	if err != nil {
		return Status{}, err
	}
	for {
		var spec Spec
		if err := init.specs.Decode(&spec); err != nil {
			return Status{}, fmt.Errorf("read run: %w", err)
		}
		if !spec.Prestart {
			return init.run(&spec)
		}
		init.boot(&spec)
	}
}

// process is a run-init that is ready for its run.
type process struct {
	hasNamespaces  bool // it is process 1 of its own namespaces
	oom            *os.File
	specs          *json.Decoder // the spec, then the exit of a program that a zygote reports
	driver, theirs *os.File      // the ends of the channel for cells: run-init's and the program's
	booted         *booted       // a program that was started before the run; nil if none
}

// start confines run-init and tells the agent that it is ready.
func start(where, procDir string) (*process, error) {
	init := &process{hasNamespaces: where != SharedPIDs}
	var err error
	if init.oom, err = os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0); err != nil {
		return nil, err
	}
	var here place
	if init.hasNamespaces {
		if here, err = openPlace(); err != nil {
			return nil, err
		}
	}
	if err := confine.MakeUnreadable(); err != nil {
		return nil, err
	}
	if err := confine.IgnoreSignals(); err != nil {
		return nil, err
	}
	if init.driver, init.theirs, err = DriverSocket(); err != nil {
		return nil, err
	}
	if init.hasNamespaces {
		if err := confine.EnterNamespaces(procDir, where, func() error { return here.enterRoot(procDir != "") }); err != nil {
			return nil, err
		}
		if err := here.send(init.theirs); err != nil {
			return nil, err
		}
		if err := confine.SetLimits(confine.OpenFiles); err != nil {
			return nil, err
		}
	}
	if err := unix.SetNonblock(specFD, true); err != nil { // waiting then holds no thread
		return nil, err
	}
	init.specs = json.NewDecoder(os.NewFile(specFD, "spec"))
	return init, nil
}

// run starts or adopts the program and returns when it has ended.
func (init *process) run(spec *Spec) (Status, error) {
	launch := init.launch
	switch {
	case spec.Adopted != 0 && init.hasNamespaces:
		launch = init.adopt
	case spec.Adopted != 0:
		launch = init.adoptSibling
	case !init.hasNamespaces:
		launch = init.launchInLandlock
	case init.booted != nil:
		launch = init.handOver
	}
	var shown *displayPipe
	if spec.Displays {
		shown = openDisplays(spec.Dir)
	}
	p, exit, err := launch(spec)
	if p == nil {
		return Status{Exit: exit}, err
	}
	// Output ends when the last user process has closed it, not when run-init ends.
	_ = unix.Close(1)
	_ = unix.Close(2)
	_ = init.theirs.Close()
	if p.driver == nil {
		_ = init.driver.Close()
		_ = unix.SetNonblock(channelFD, true) // waiting then holds no thread
		agent := os.NewFile(channelFD, "agent")
		go p.obey(agent, shown)
		go shown.serve(agent)
		exit, err = p.wait()
		shown.end()
	} else {
		cells := serveCells(p)
		exit, err = p.wait()
		exit = cells.end(exit)
	}
	status := Status{Exit: exit}
	if status.Alone = p.dying || init.hasNamespaces && isAlone() && isCheapToFree(); status.Alone {
		addUsage(&status.Exit)
	}
	return status, err
}

// isAlone reports whether no process of the run is left but run-init. Orphans become children of
// process 1. (kill(-1, 0) would also tell, but makes the kernel visit every process of the
// machine.)
func isAlone() bool {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG|syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.ECHILD):
			return true
		case err == nil && pid == 0 || err != nil && !errors.Is(err, syscall.EINTR):
			return false
		}
	}
}

// isCheapToFree reports whether the run's own file systems are almost empty. Their memory counts
// against the next run until the kernel has freed it.
func isCheapToFree() bool {
	for _, path := range []string{"/tmp", "/dev/shm"} {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) != nil || (st.Blocks-st.Bfree)*uint64(st.Bsize) > 4<<20 || st.Files-st.Ffree > 1000 {
			return false
		}
	}
	return true
}

// addUsage adds the usage of run-init and its children, which the agent would otherwise read from
// the exited run-init.
func addUsage(exit *wire.Exit) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var ru unix.Rusage
		if unix.Getrusage(who, &ru) == nil {
			exit.UserUS += ru.Utime.Nano() / 1000
			exit.SysUS += ru.Stime.Nano() / 1000
			exit.MaxRSSB = max(exit.MaxRSSB, ru.Maxrss<<10)
		}
	}
}
