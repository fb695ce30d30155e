package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

// tasks are the things that go on beside requests and need the app's parts. They end before the parts do.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

var errEnding = errors.New("the server is shutting down")

func newTasks() *tasks {
	ctx, cancel := context.WithCancel(context.Background())
	return &tasks{ctx: ctx, cancel: cancel}
}

// start runs f in a goroutine of its own, with a context that ends with the tasks.
func (t *tasks) start(f func(context.Context)) {
	if t.enter() == nil {
		go func() {
			defer t.wg.Done()
			f(t.ctx)
		}()
	}
}

// do runs f, whose context ends with ctx or with the tasks. It returns errEnding once they have ended.
func (t *tasks) do(ctx context.Context, f func(context.Context) error) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	return f(ctx)
}

func (t *tasks) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errEnding
	}
	t.wg.Add(1)
	return nil
}

// tasksTimeout leaves most of closeTimeout to what comes after the tasks.
const tasksTimeout = 3 * time.Second

// close ends all of them and waits until they have, but not for ever: what hangs goes with the process.
func (t *tasks) close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	done := make(chan struct{})
	go func() {
		t.wg.Wait()
		close(done)
	}()
	ctx, cancel := context.WithTimeout(ctx, tasksTimeout)
	defer cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("something in the background did not end in time")
	}
}
