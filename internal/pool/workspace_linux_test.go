package pool_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"mcp-code-sandbox/internal/pool"
	"mcp-code-sandbox/internal/sandbox"
)

// onDirectories runs a test on a pool that cannot attach workspaces.
func onDirectories(t *testing.T, size int, test func(t *testing.T, r *rig, root string)) {
	root := t.TempDir()
	bubble(t, func(c *pool.Config, b *backend) {
		c.Backend, c.Dir, c.Size = b, filepath.Join(root, "pool"), size
		c.Own = func(dir string) error { return os.Chmod(dir, 0o710) }
	}, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Second)
		r.wantReady(1)
		test(t, r, root)
	})
}

// TestMakeWorkspace: a new session gets the directory of a ready sandbox, and then the sandbox.
func TestMakeWorkspace(t *testing.T) {
	onDirectories(t, 1, func(t *testing.T, r *rig, root string) {
		files := filepath.Join(root, "files")
		in := with(python("s"), func(s *sandbox.Spec) { s.Workspace = files })
		if s := r.start(python("old")); pooled(s) {
			t.Error("a session that has a workspace got another")
		}
		if !r.MakeWorkspace(files) {
			t.Fatal("no workspace")
		}
		if fi, err := os.Stat(files); err != nil || fi.Mode().Perm() != 0o710 || len(entries(t, files)) > 0 {
			t.Errorf("%v, %v", fi, err)
		}
		sb, err := r.Start(t.Context(), in)
		if err != nil || !pooled(sb.(*box)) || filepath.Dir(sb.(*box).workspace) != filepath.Join(root, "pool") {
			t.Errorf("%v, %v", sb, err)
		}
		if again, err := r.Start(t.Context(), in); err != nil || pooled(again.(*box)) {
			t.Errorf("the second sandbox of a session: %v, %v", again, err)
		}
		r.after(time.Second)
		r.wantReady(1)
	})
}

// TestMakeWorkspaceFails: MakeWorkspace replaces nothing, and no session gets a sandbox with a
// directory that is not its workspace.
func TestMakeWorkspaceFails(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, r *rig, files string) (wantUsed bool){
		"taken by a directory": func(t *testing.T, r *rig, files string) bool {
			if err := os.Mkdir(files, 0o700); err != nil || r.MakeWorkspace(files) {
				t.Error("an empty workspace was replaced")
			}
			return false
		},
		"taken by a link": func(t *testing.T, r *rig, files string) bool {
			elsewhere := t.TempDir()
			if err := os.Symlink(elsewhere, files); err != nil || r.MakeWorkspace(files) {
				t.Error("a link was replaced, or followed")
			}
			return false
		},
		"no parent": func(t *testing.T, r *rig, files string) bool {
			if r.MakeWorkspace(filepath.Join(files, "missing")) {
				t.Error("a workspace was made without a parent directory")
			}
			return false
		},
		"another kind": func(t *testing.T, r *rig, files string) bool {
			r.MakeWorkspace(files)
			shell := with(python("s"), func(s *sandbox.Spec) { s.Workspace, s.Runner = files, "shell" })
			if sb, err := r.Start(t.Context(), shell); err != nil || pooled(sb.(*box)) {
				t.Errorf("a shell runs in a sandbox for Python: %v, %v", sb, err)
			}
			return false
		},
		"another session of that name": func(t *testing.T, r *rig, files string) bool {
			r.MakeWorkspace(files)
			if err := errors.Join(os.Rename(files, files+"-closed"), os.Mkdir(files, 0o700)); err != nil {
				t.Fatal(err)
			}
			return false
		},
		"deleted": func(t *testing.T, r *rig, files string) bool {
			r.MakeWorkspace(files)
			if err := os.Remove(files); err != nil {
				t.Fatal(err)
			}
			return false
		},
		"unused": func(_ *testing.T, r *rig, files string) bool {
			r.MakeWorkspace(files)
			r.after(time.Minute)
			return false
		},
		"it dies": func(_ *testing.T, r *rig, files string) bool {
			r.MakeWorkspace(files)
			r.b.live()[0].die()
			r.after(time.Second)
			return false
		},
		"cancelled": func(t *testing.T, r *rig, files string) bool {
			r.MakeWorkspace(files)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, _ = r.Start(ctx, with(python("s"), func(s *sandbox.Spec) { s.Workspace = files + "-other" }))
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			onDirectories(t, 1, func(t *testing.T, r *rig, root string) {
				files := filepath.Join(root, "files")
				used := test(t, r, files)
				sb, err := r.Start(t.Context(), with(python("s"), func(s *sandbox.Spec) { s.Workspace = files }))
				if err != nil || pooled(sb.(*box)) != used {
					t.Errorf("%v, %v: used %v", sb, err, !used)
				}
				r.after(2 * time.Minute)
				if r.Ready() == 0 {
					t.Error("none is ready any more")
				}
				for _, s := range r.b.live() {
					if pooled(s) && !r.out[s] && filepath.Dir(s.workspace) != filepath.Join(root, "pool") {
						t.Errorf("%s has the directory %s", s.ID(), s.workspace)
					}
				}
			})
		})
	}
}

// TestCannotAttach: after the kernel has refused to attach, the pool starts sandboxes on
// directories.
func TestCannotAttach(t *testing.T) {
	root := t.TempDir()
	bubble(t, func(c *pool.Config, b *backend) {
		c.Dir = filepath.Join(root, "pool")
		b.onAttach = func(context.Context, string) error { return errors.ErrUnsupported }
	}, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Second)
		if r.MakeWorkspace(filepath.Join(root, "files")) {
			t.Error("a sandbox without a directory has made a workspace")
		}
		if s := r.start(python("s")); pooled(s) {
			t.Error("a sandbox without a workspace was used")
		}
		r.after(time.Second)
		if !r.MakeWorkspace(filepath.Join(root, "files")) {
			t.Error("no workspace was made")
		}
	})
}

// TestPrepareUnsupported: if the backend stops supporting Prepare, sandboxes that it prepared
// earlier are ended.
func TestPrepareUnsupported(t *testing.T) {
	root := t.TempDir()
	var no atomic.Bool
	bubble(t, func(c *pool.Config, b *backend) {
		c.Dir = filepath.Join(root, "pool")
		b.onStart = func(_ context.Context, spec sandbox.Spec) error {
			if no.Load() && spec.Workspace == "" {
				return errors.ErrUnsupported
			}
			return nil
		}
	}, func(t *testing.T, r *rig) {
		r.KeepReady(python(""))
		r.after(time.Second)
		before := r.b.live()[0]
		no.Store(true)
		r.start(with(python("s"), func(s *sandbox.Spec) { s.Runner = "shell" })) // of which one more is wanted
		r.after(5 * time.Second)
		if !before.over() {
			t.Error("a prepared sandbox is still there")
		}
		if !r.MakeWorkspace(filepath.Join(root, "files")) {
			t.Error("no workspace was made")
		}
	})
}
