package agent

import "os"

// ahead is a fork of a zygote that has been made before there is a run for it, because a fork of much memory takes a while: it waits in
// the namespaces of a run-init that waits, without privileges, for its spec. It ends if there is none.
type ahead struct {
	stop chan struct{} // closed to have no more patience
	done chan struct{} // closed when what follows is there

	given  *given // nil if run-init has not said
	zygote *zygote
	forked
	spec *os.File // nil if there is no fork
}

// forkAhead has the zygote of that name fork a process into p, as soon as both are ready.
func (zs *zygotes) forkAhead(p *initProcess, name string) *ahead {
	z := zs.best(name)
	if z == nil || z.shared != nil {
		return nil
	}
	w := &ahead{stop: make(chan struct{}), done: make(chan struct{}), zygote: z}
	go func() {
		defer close(w.done)
		select {
		case <-z.ready:
		case <-w.stop:
			return
		}
		g, err := p.given()
		if err != nil {
			return
		}
		w.given = &g
		if f, spec, err := z.forkInto(g, requestAhead, false); err == nil {
			w.forked, w.spec = f, spec
		}
	}()
	return w
}

// take waits for what there is. It is nil-safe.
func (w *ahead) take() *given {
	if w == nil {
		return nil
	}
	close(w.stop)
	<-w.done
	return w.given
}

// hand gives the run to the process that waits, if the zygote that is right for the run has made it and it lives.
func (w *ahead) hand(spec initSpec, z *zygote) bool {
	if w == nil || w.spec == nil {
		return false
	}
	if spec.Channel || z != w.zygote {
		_ = w.spec.Close()
		return false
	}
	return spec.tellFork(w.spec) == nil // else it has died, without the whole of the spec
}

// drop ends it. It does not wait.
func (w *ahead) drop() {
	if w == nil {
		return
	}
	close(w.stop)
	go func() {
		<-w.done
		if w.given != nil {
			w.given.close()
		}
		_ = w.spec.Close() // a nil file says so and does nothing
	}()
}

// forkInto starts a process in the namespaces of a run-init, which waits for its spec on the pipe that is returned.
func (z *zygote) forkInto(g given, request string, channel bool) (forked, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return forked{}, nil, err
	}
	defer r.Close()
	files := []*os.File{g.pid, g.mount, g.ipc, g.root, r, g.stdout, g.stderr}
	if channel {
		files = append(files, g.driver)
	}
	f, err := z.fork(request, files...)
	if err != nil {
		_ = w.Close() // what it may have forked has no spec, and ends: the run starts in another way
		return forked{}, nil, err
	}
	return f, w, nil
}
