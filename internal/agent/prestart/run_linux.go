package prestart

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// Run is a run-init and the agent's ends of its pipes.
type Run struct {
	Stdout, Stderr *os.File
	Channel        *os.File // for cells and displays
	Forked         bool     // a zygote forked the program
	Exiting        bool     // after Wait: send the result first, then close the run

	proc         *os.Process
	spec, status *os.File
	tree         *os.File                         // keeps the mounts of the run alive; nil if the channel does
	procDir      string                           // its /proc is mounted on this directory; empty if on none
	reap         func() (*os.ProcessState, error) // waits for the end of everything in the run
	exiting      chan struct{}                    // the launcher's
	inherits     bool                             // run-init was cloned from a zygote, and its memory counts with it
	onClose      []*os.File
}

// Wait returns how the program ended, when nothing of the run is left, or run-init is Exiting.
func (r *Run) Wait() (runinit.Status, error) {
	text, readErr := io.ReadAll(io.LimitReader(r.status, runinit.MaxStatus))
	var status runinit.Status
	reported := readErr == nil && json.Unmarshal(text, &status) == nil
	if reported && status.Alone && r.exitLater() {
		status.Forked = r.Forked
		return status, nil
	}
	// When run-init exits, the kernel has killed the rest.
	proc.AwaitExit(r.proc.Pid)
	state, err := r.reap()
	if err != nil {
		return runinit.Status{}, err
	}
	if !reported {
		status.Exit = runinit.ExitOf(state.Sys().(syscall.WaitStatus))
		if status.Signal == 0 { // it was not killed
			status.Exit = wire.Exit{Code: 126, Error: "the run's init broke down; too few processes or too little memory were left, or the program attacked it"}
		}
	}
	status.Forked = r.Forked
	if !status.Alone { // otherwise it has reported its own usage
		status.UserUS += state.UserTime().Microseconds()
		status.SysUS += state.SystemTime().Microseconds()
	}
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok && !r.inherits {
		status.MaxRSSB = max(status.MaxRSSB, usage.Maxrss<<10)
	}
	return status, nil
}

// exitLater reports whether the result may be sent before run-init exits: the kernel takes a while
// to free its namespaces. Only one may be exiting at a time: its threads count against the next
// run.
func (r *Run) exitLater() bool {
	select {
	case r.exiting <- struct{}{}:
	default:
		return false
	}
	r.Exiting = true
	go func() {
		proc.AwaitExit(r.proc.Pid)
		_, _ = r.reap()
		<-r.exiting
	}()
	return true
}

// Kill ends the run now.
func (r *Run) Kill() { _ = r.proc.Kill() }

// Interrupt asks the program to stop. An interpreter is asked through its cells.
func (r *Run) Interrupt() { _, _ = r.Channel.Write([]byte{runinit.Interrupt}) }

// Show calls show for everything that the program displays, until run-init ends or the deadline
// of the channel has passed.
func (r *Run) Show(show func(runinit.Display) error) {
	displays := json.NewDecoder(io.LimitReader(r.Channel, runinit.MaxDisplays))
	for {
		var d runinit.Display
		if displays.Decode(&d) != nil {
			return
		}
		_ = show(d)
		if _, err := r.Channel.Write([]byte{runinit.Shown}); err != nil {
			return
		}
	}
}

// Close ends the mounts of the run and closes the agent's descriptors of it.
func (r *Run) Close() {
	r.CloseAllButChannel()
	for _, f := range r.onClose {
		_ = f.Close()
	}
	_ = r.Channel.Close()
}

// CloseAllButChannel is Close without the channel for cells.
func (r *Run) CloseAllButChannel() {
	r.endMounts()
	for _, f := range []*os.File{r.spec, r.status, r.Stdout, r.Stderr} {
		_ = f.Close()
	}
}

// Discard ends a run-init that has no run.
func (r *Run) Discard() {
	_ = r.proc.Kill()
	proc.AwaitExit(r.proc.Pid)
	_, _ = r.reap()
	r.Close()
}

// endMounts detaches /proc with its covers, of which another run may have a descriptor, and then
// lets the other mounts end. The channel, which may keep them alive, must be open.
func (r *Run) endMounts() {
	if r.procDir != "" {
		if err := unix.Rmdir(r.procDir); err != nil {
			fmt.Fprintf(os.Stderr, "sandbox-agent: detach /proc of an ended run: %v; ending the sandbox\n", err)
			os.Exit(1)
		}
		r.procDir = ""
	}
	_ = r.tree.Close() // on a nil file it does nothing
}

// send writes values to run-init in the background. It ends when run-init has read them, or has
// ended.
func (r *Run) send(values ...func() any) {
	go func() {
		encoder := json.NewEncoder(r.spec)
		for _, value := range values {
			_ = encoder.Encode(value())
		}
		_ = r.spec.Close()
	}()
}
