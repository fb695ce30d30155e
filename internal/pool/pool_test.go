package pool_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"mcp-code-sandbox/internal/pool"
	"mcp-code-sandbox/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a pool on a fake backend, with a fake clock.
type rig struct {
	*testing.T
	*pool.Pool
	b *backend

	mu  sync.Mutex
	out map[sandbox.Sandbox]bool // handed out
}

// Start fails the test if a sandbox is handed out twice.
func (r *rig) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	sb, err := r.Pool.Start(ctx, spec)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.out[sb] {
		r.Errorf("%s was handed out twice", sb.ID())
	}
	r.out[sb] = true
	return sb, err
}

// bubble runs a test on a pool and checks that Close leaves nothing behind.
func bubble(t *testing.T, change func(*pool.Config, *backend), test func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{}
		cfg := pool.Config{Backend: preparing{b}, Size: 3, Total: 10}
		if change != nil {
			change(&cfg, b)
		}
		r := &rig{T: t, Pool: pool.New(cfg), b: b, out: map[sandbox.Sandbox]bool{}}
		defer func() {
			if err := r.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
			for _, s := range b.live() {
				if !r.out[s] {
					t.Errorf("%s is left", s.ID())
				}
				s.die()
			}
			if cfg.Dir != "" {
				if left := entries(t, cfg.Dir); len(left) > 0 {
					t.Errorf("directories are left: %v", left)
				}
			}
		}()
		test(r.T, r)
	})
}

// start returns a sandbox and checks its workspace.
func (r *rig) start(spec sandbox.Spec) *box {
	r.Helper()
	sb, err := r.Start(r.Context(), spec)
	if err != nil {
		r.Fatal(err)
	}
	s := sb.(*box)
	if s.workspace != spec.Workspace {
		r.Errorf("%s has the workspace %q, want %q", s.ID(), s.workspace, spec.Workspace)
	}
	return s
}

// after lets time pass.
func (r *rig) after(d time.Duration) {
	time.Sleep(d) // of the bubble
	synctest.Wait()
}

func (r *rig) wantReady(n int) {
	r.Helper()
	if got := r.Ready(); got != n {
		r.Fatalf("%d are ready, want %d", got, n)
	}
}

func pooled(s *box) bool { return s.spec.Session == "" }

// TestTake: a ready sandbox is handed out once, keeps its ID, and never comes back.
func TestTake(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Second)
		r.wantReady(1)
		for i := range 20 {
			s := r.start(python("s"))
			if i == 0 && (!pooled(s) || s.ID() == "s-1" || s.spec.SessionID != "") {
				t.Errorf("the ready one was not used, or knew its session before: %+v", s.spec)
			}
			if i%2 == 0 {
				_ = s.Close(t.Context())
			}
			r.after(time.Second)
		}
	})
}

// TestRace: each of many concurrent sessions gets its own sandbox.
func TestRace(t *testing.T) {
	bubble(t, func(c *pool.Config, _ *backend) { c.Total = 0 }, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Second)
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			wg.Go(func() { r.start(python(name)) })
		}
		wg.Wait()
	})
}

// TestKinds: a ready sandbox serves only the same spec. A changed runner replaces its kind.
func TestKinds(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(*sandbox.Spec)
		replaces bool // the kind that was ready
	}{
		"mounts":  {func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/new", Target: "/b"}} }, true},
		"image":   {func(s *sandbox.Spec) { s.Image = "sha256:2" }, true},
		"limits":  {func(s *sandbox.Spec) { s.Limits.MemoryBytes = 1 }, true},
		"zygote":  {func(s *sandbox.Spec) { s.Zygotes = []sandbox.Zygote{{Name: "python", Source: []byte("y")}} }, true},
		"forward": {func(s *sandbox.Spec) { s.Forward = true }, true},
		"runner":  {func(s *sandbox.Spec) { s.Runner = "shell" }, false},
		"network": {func(s *sandbox.Spec) { s.Network = true }, false},
		"wrapper": {func(s *sandbox.Spec) { s.Wrapper = "/w" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, r *rig) {
				r.KeepReady(python(""))
				r.after(time.Second)
				before := r.b.live()[0]
				other := r.start(with(python("s"), tt.change))
				if pooled(other) {
					t.Errorf("a sandbox of another kind was used: %+v", other.spec)
				}
				r.after(time.Second)
				if before.over() != tt.replaces {
					t.Errorf("what was ready has ended: %v, want %v", before.over(), tt.replaces)
				}
				for _, s := range r.b.live() {
					if pooled(s) && (s.spec.Network || s.spec.Wrapper != "") {
						t.Errorf("ready: %+v", s.spec)
					}
				}
			})
		})
	}
}

// TestStaleMounts: no session gets a sandbox that was started before a mounted directory was
// replaced.
func TestStaleMounts(t *testing.T) {
	libraries := filepath.Join(t.TempDir(), "libraries")
	if err := os.Mkdir(libraries, 0o700); err != nil {
		t.Fatal(err)
	}
	spec := with(python("s"), func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: libraries, Target: "/b"}} })
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.KeepReady(spec)
		r.after(time.Second)
		for range 4 {
			r.start(spec)
		}
		r.after(time.Second)
		r.wantReady(3)
		old := r.b.live()
		if err := errors.Join(os.Rename(libraries, libraries+"-old"), os.Mkdir(libraries, 0o700)); err != nil {
			t.Fatal(err)
		}
		if s := r.start(spec); pooled(s) {
			t.Error("a sandbox with the old libraries was used")
		}
		r.after(5 * time.Second)
		for _, s := range old {
			if !r.out[s] && !s.over() {
				t.Errorf("%s is still ready", s.ID())
			}
		}
		if s := r.start(spec); !pooled(s) {
			t.Error("none was ready")
		}
	})
}

// TestDemand: a kind in high demand has more ready sandboxes, one without demand only its floor.
func TestDemand(t *testing.T) {
	bubble(t, func(c *pool.Config, _ *backend) { c.Total = 0 }, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		shell := with(python("s"), func(s *sandbox.Spec) { s.Runner, s.Zygotes = "shell", nil })
		r.after(time.Minute)
		r.wantReady(1)
		if pooled(r.start(shell)) {
			t.Error("a shell was ready without demand")
		}
		r.after(time.Second)
		r.wantReady(2)
		for range 9 {
			r.start(python("s"))
		}
		r.after(time.Second)
		r.wantReady(4) // three of the one, one of the other
		r.after(24 * time.Hour)
		r.wantReady(1)
		r.Cool([]string{"other"})
		r.after(time.Hour)
		r.wantReady(0)
	})
}

// TestDemandForPrograms: once asked for, a kind whose program waits in the sandbox is kept ready.
func TestDemandForPrograms(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		node := with(python("s"), func(s *sandbox.Spec) {
			s.Runner, s.Zygotes, s.Prestart = "typescript", nil, &sandbox.Prestart{Argv: []string{"node", "{file}"}}
		})
		r.after(time.Hour)
		r.wantReady(0)
		r.start(node)
		r.after(24 * time.Hour)
		r.wantReady(1)
		if !pooled(r.start(node)) {
			t.Error("none was ready")
		}
		r.Cool([]string{"python"})
		r.after(time.Hour)
		r.wantReady(0)
	})
}

// TestBudget: the pool waits for free memory, and a limited time for idle processors.
func TestBudget(t *testing.T) {
	var cpu, memory atomic.Bool
	bubble(t, func(c *pool.Config, _ *backend) {
		c.Budget = func() (bool, bool) { return cpu.Load(), memory.Load() }
	}, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Minute)
		r.wantReady(0)
		memory.Store(true)
		r.after(10 * time.Second)
		r.wantReady(1)
		r.start(python("s"))
		r.after(time.Second)
		r.wantReady(0)
		cpu.Store(true)
		r.after(100 * time.Millisecond)
		r.wantReady(1)
	})
}

// TestTotal: ready sandboxes count against the total, and make room.
func TestTotal(t *testing.T) {
	bubble(t, func(c *pool.Config, _ *backend) { c.Total = 4 }, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Minute)
		var used []*box
		for range 3 {
			used = append(used, r.start(python("s")))
			r.after(time.Second)
		}
		r.wantReady(1)
		shell := with(python("s"), func(s *sandbox.Spec) { s.Runner = "shell" })
		used = append(used, r.start(shell))
		r.after(time.Minute)
		r.wantReady(0)
		if r.b.most > 4 {
			t.Errorf("%d sandboxes at one time", r.b.most)
		}
		for _, s := range used {
			s.die()
		}
		r.after(time.Minute)
		if r.Ready() == 0 || r.b.most > 4 {
			t.Errorf("%d are ready, %d were alive", r.Ready(), r.b.most)
		}
	})
}

// TestRenewal: sandboxes that die or grow old are replaced. Failed starts are retried less and less
// often.
func TestRenewal(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Second)
		first := r.b.live()[0]
		first.die()
		r.after(5 * time.Second)
		r.wantReady(1)
		if s := r.start(python("s")); s == first || s.over() {
			t.Error("a dead sandbox was handed out")
		}
		r.after(time.Second)
		second := r.b.live()[1]
		r.after(time.Hour)
		r.wantReady(1)
		if !second.over() {
			t.Error("an hour old, and still ready")
		}
	})
	var fixed atomic.Bool
	var tries atomic.Int64
	bubble(t, func(_ *pool.Config, b *backend) {
		b.onStart = func(_ context.Context, s sandbox.Spec) error {
			if !fixed.Load() && s.Session == "" {
				tries.Add(1)
				return errors.New("no")
			}
			return nil
		}
	}, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Hour)
		if n := tries.Load(); n < 10 || n > 80 {
			t.Errorf("%d tries in an hour", n)
		}
		if s := r.start(python("s")); pooled(s) {
			t.Error("no pooled sandbox could be started, but one was used")
		}
		fixed.Store(true)
		r.after(2 * time.Minute)
		r.wantReady(1)
	})
}

// TestAttachFails: if a workspace cannot be attached, the session gets another sandbox.
func TestAttachFails(t *testing.T) {
	for name, attach := range map[string]func(context.Context, string) error{
		"refused": func(context.Context, string) error { return errors.New("no") },
		"hangs":   func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(_ *pool.Config, b *backend) { b.onAttach = attach }, func(t *testing.T, r *rig) {
				r.KeepReady(python(""))
				r.after(time.Second)
				ready := r.b.live()[0]
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				sb, err := r.Start(ctx, python("s"))
				if name == "hangs" && !errors.Is(err, context.DeadlineExceeded) || name == "refused" && (err != nil || sb.ID() != "s-1") {
					t.Errorf("Start: %v, %v", sb, err)
				}
				if !ready.over() {
					t.Error("the ready sandbox lives on")
				}
			})
		})
	}
}

// TestClose: Close aborts a start in progress and leaves sandboxes in use alone.
func TestClose(t *testing.T) {
	var slow atomic.Bool
	bubble(t, func(_ *pool.Config, b *backend) {
		b.onStart = func(ctx context.Context, _ sandbox.Spec) error {
			if slow.Load() {
				<-ctx.Done()
			}
			return ctx.Err()
		}
	}, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Second)
		slow.Store(true)
		used := r.start(python("s"))
		r.after(time.Second)
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if used.over() {
			t.Error("a session has lost its sandbox")
		}
		slow.Store(false)
		if s := r.start(python("t")); pooled(s) {
			t.Error("a closed pool has sandboxes")
		}
		r.KeepReady(python(""))
		r.after(time.Minute)
		r.wantReady(0)
	})
}
