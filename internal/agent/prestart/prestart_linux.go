// Package prestart starts the processes of runs, if possible before their run is known.
//
// A prestarted process waits, isolated, for its run. There are three kinds: a bare run-init, a
// run-init with a fork of a zygote, and a run-init with its booted program. See docs/warm-start.md
// for why, and for the protocol of zygotes.
//
// Two launchers confine runs: [Namespaces] and [Landlock]. The agent chooses one when it starts.
// The package knows neither the server nor what a run is for, and no language.
package prestart

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// Launcher confines runs. Its methods are safe for concurrent use.
type Launcher interface {
	// Spec returns the spec of a run.
	Spec(r *wire.Run) *runinit.Spec
	// Take returns the prestarted process if it suits the run, else nil.
	Take(spec *runinit.Spec) Process
	// Start starts a process for this run.
	Start(spec *runinit.Spec) (Process, error)
	// Prestart prepares for another run like r, which has ended. quiet means that no interpreter is
	// alive.
	Prestart(r *wire.Run, quiet bool)
	// PrestartAhead prepares for another run like r, which is running.
	PrestartAhead(r *wire.Run)
	// BeginRun counts a run, or a cell, until the caller calls end.
	BeginRun(cell bool) (end func())
	// LimitsHit returns the sandbox's hit limits, if the backend cannot count them.
	LimitsHit() LimitsHit
	// Owns reports whether a process is the launcher's own, so that it runs no user code.
	Owns(pid int) bool
}

// Process waits, isolated, for its run. The caller hands over the run or discards the process,
// once.
type Process interface {
	// HandOver gives the process its run. On an error the process is discarded.
	HandOver(spec *runinit.Spec) (*Run, error)
	// Discard ends a process that gets no run. It returns when nothing is left of it.
	Discard()
}

// How long a prestarted process waits for a run. Processes that hold much memory wait a minute.
const (
	bareLife   = 5 * time.Minute
	bootedLife = time.Minute
	zygoteLife = time.Minute
)

// Settings are the parts of the agent's configuration that launchers use.
type Settings struct {
	DataBytes, Processes uint64 // rlimits of a run's processes; 0: none
	NoZygote             bool   // start no zygote: there is too little memory
}

// LimitsHit counts the hits of the sandbox's limits.
type LimitsHit struct{ OOMKills, PIDsRefused uint64 }

// maxStarting limits the runs that start at the same time: each holds a thread until the exec.
const maxStarting = 2

// base is what the two launchers share.
type base struct {
	settings Settings
	slot     slot
	zygotes  zygotes
	starting chan struct{} // holds one for each run that is starting
	exiting  chan struct{} // holds one for a run-init that exits after its result was sent; nil: never
}

func newBase(settings Settings) base {
	return base{settings: settings, starting: make(chan struct{}, maxStarting)}
}

func (b *base) BeginRun(cell bool) (end func()) { return b.slot.beginRun(cell) }

func (b *base) spec(r *wire.Run, dir string) *runinit.Spec {
	return &runinit.Spec{
		Argv: r.Argv, File: r.File, Code: r.Code, Env: r.Env, Driver: r.Driver, Displays: r.Displays,
		TmpBytes: r.Limits.TmpBytes, FileBytes: uint64(max(0, r.Limits.FileBytes)),
		DataBytes: b.settings.DataBytes, Processes: b.settings.Processes, Dir: dir, Zygote: r.Zygote,
	}
}

// newRun makes the pipes of a run-init. start starts it with the files as its descriptors from 0
// on.
func (b *base) newRun(start func(run *Run, files []*os.File) error) (_ *Run, err error) {
	b.starting <- struct{}{}
	defer func() { <-b.starting }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	files := []*os.File{null}
	run := &Run{exiting: b.exiting}
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			run.Close()
		}
	}()
	for _, ours := range []**os.File{&run.Stdout, &run.Stderr, &run.spec, &run.status} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		if ours == &run.spec {
			r, w = w, r
		}
		*ours = r
		files = append(files, w)
	}
	channel, theirs, err := proc.SocketPair(unix.SOCK_STREAM | unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	run.Channel, files = channel, append(files, theirs)
	if err := start(run, files); err != nil {
		return nil, err
	}
	return run, nil
}
