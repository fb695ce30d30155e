package prestart

import (
	"os"

	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/wire"
)

// forked is a program that a zygote has forked.
type forked struct {
	pid   int // zero if the fork failed
	inner int // its pid in the namespace of its run
	exit  <-chan wire.Exit
}

// waitingFork is a fork of a zygote in the namespaces of a run-init that waits for its run. It
// waits without privileges for its spec, and ends if it gets none. Forking early saves the time to
// copy a large process.
type waitingFork struct {
	cancel chan struct{} // closed to stop waiting for the zygote
	done   chan struct{} // closed when the fields below are set

	zygote  *zygote
	place   *runinit.Place // nil if run-init has not sent it
	program forked
	spec    *os.File // nil if there is no fork
}

// newWaitingFork has the zygote fork a program into a run-init, as soon as both are ready.
func newWaitingFork(z *zygote, channel *os.File, request string) *waitingFork {
	w := &waitingFork{cancel: make(chan struct{}), done: make(chan struct{}), zygote: z}
	z.request()
	go func() {
		defer close(w.done)
		select {
		case <-z.ready:
		case <-w.cancel:
			return
		}
		var err error
		if w.place, err = runinit.ReceivePlace(channel); err != nil {
			return
		}
		if program, spec, err := z.forkInto(w.place, request, false); err == nil {
			w.program, w.spec = program, spec
		}
	}()
	return w
}

// stop stops waiting for the zygote and returns the place of the run-init if it has been received.
// On nil it does nothing.
func (w *waitingFork) stop() *runinit.Place {
	if w == nil {
		return nil
	}
	close(w.cancel)
	<-w.done
	return w.place
}

// handOver gives the run to the fork, if the run's zygote has made it and it is alive. Call it
// after stop.
func (w *waitingFork) handOver(spec *runinit.Spec, z *zygote) (forked, bool) {
	if w == nil || w.spec == nil {
		return forked{}, false
	}
	if spec.Channel || z != w.zygote {
		_ = w.spec.Close()
		return forked{}, false
	}
	return w.program, spec.WriteForFork(w.spec) == nil // on an error, the fork died before it read the whole spec
}

// drop ends the fork. It does not wait. On nil it does nothing.
func (w *waitingFork) drop() {
	if w == nil {
		return
	}
	close(w.cancel)
	go func() {
		<-w.done
		w.place.Close()
		_ = w.spec.Close() // on a nil file it does nothing
	}()
}
