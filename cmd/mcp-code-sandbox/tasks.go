package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

// tasks are the goroutines of an app that no request started. They end before its parts close.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

var errClosing = errors.New("the server is shutting down")

func newTasks() *tasks {
	ctx, cancel := context.WithCancel(context.Background())
	return &tasks{ctx: ctx, cancel: cancel}
}

// start runs f in a goroutine. Its context ends when the tasks close.
func (t *tasks) start(f func(context.Context)) {
	if t.enter() == nil {
		go func() {
			defer t.wg.Done()
			f(t.ctx)
		}()
	}
}

// do runs f. Its context ends with ctx, or when the tasks close. After that it returns errClosing.
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
		return errClosing
	}
	t.wg.Add(1)
	return nil
}

// tasksTimeout leaves most of closeTimeout to the parts that close after the tasks.
const tasksTimeout = 3 * time.Second

// close ends all tasks and waits for them, up to tasksTimeout.
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
		return errors.New("a background task did not end in time")
	}
}
