package pool_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
)

// backend is a backend whose sandboxes are only records.
type backend struct {
	onStart  func(ctx context.Context, spec sandbox.Spec) error
	onAttach func(ctx context.Context, workspace string) error

	mu      sync.Mutex
	started []*box
	most    int // at one time
}

func (b *backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Workspace == "" {
		return nil, errors.New("no workspace")
	}
	return b.start(ctx, spec)
}

func (b *backend) start(ctx context.Context, spec sandbox.Spec) (*box, error) {
	if b.onStart != nil {
		if err := b.onStart(ctx, spec); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &box{b: b, spec: spec, workspace: spec.Workspace, ended: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.started = append(b.started, s)
	b.most = max(b.most, len(b.liveLocked()))
	return s, nil
}

func (b *backend) live() []*box {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.liveLocked()
}

func (b *backend) liveLocked() (live []*box) {
	for _, s := range b.started {
		if !s.over() {
			live = append(live, s)
		}
	}
	return live
}

// preparing is a backend that can attach workspaces.
type preparing struct{ *backend }

func (b preparing) Prepare(ctx context.Context, spec sandbox.Spec) (sandbox.Prepared, error) {
	if spec.Workspace != "" {
		return nil, errors.New("it has a workspace")
	}
	return b.start(ctx, spec)
}

type box struct {
	b         *backend
	spec      sandbox.Spec
	workspace string
	once      sync.Once
	ended     chan struct{}
}

func (s *box) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

func (s *box) die()                     { s.once.Do(func() { close(s.ended) }) }
func (s *box) ID() string               { return s.spec.ID }
func (s *box) Conn() io.ReadWriteCloser { return nil }
func (s *box) Close(context.Context) error {
	s.die()
	return nil
}

func (s *box) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.ended:
		return sandbox.Exit{}, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (s *box) Attach(ctx context.Context, workspace string) error {
	if s.workspace != "" || s.over() {
		return errors.New("it cannot be attached")
	}
	if s.b.onAttach != nil {
		if err := s.b.onAttach(ctx, workspace); err != nil {
			return err
		}
	}
	s.workspace = workspace
	return nil
}

// python is the spec of a session that runs Python.
func python(session string) sandbox.Spec {
	return sandbox.Spec{
		ID: session + "-1", Session: session, SessionID: "its " + session, Workspace: "/sessions/" + session,
		Runner: "python", Mounts: []sandbox.Mount{{Source: "/a", Target: "/b"}}, Zygotes: []sandbox.Zygote{{Name: "python", Source: []byte("x")}},
	}
}

// with changes a spec.
func with(spec sandbox.Spec, change func(*sandbox.Spec)) sandbox.Spec {
	change(&spec)
	return spec
}

// entries lists a directory, which may be missing.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, filepath.Base(e.Name()))
	}
	return names
}
