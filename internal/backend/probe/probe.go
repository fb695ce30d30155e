// Package probe tries a backend: it is what the backends' Probe methods have in common.
package probe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// Trial is a sandbox to start and a program to run in it.
type Trial struct {
	Name     string       // of the check
	Dir      string       // for the workspace; it is made if it does not exist
	UID, GID int          // of the workspace; -1 leaves it to the server's user
	Spec     sandbox.Spec // without Workspace; ID is a suffix
	Run      wire.Run
}

// Start tries it and reports the outcome.
func Start(ctx context.Context, b sandbox.Backend, trial Trial) sandbox.Check {
	start := time.Now()
	if err := run(ctx, b, trial); err != nil {
		return sandbox.Failure(trial.Name, err)
	}
	return sandbox.Check{
		Name: trial.Name, Detail: fmt.Sprintf("started, ran a program and ended in %d ms", time.Since(start).Milliseconds()),
	}
}

func run(ctx context.Context, b sandbox.Backend, trial Trial) error {
	if err := os.MkdirAll(trial.Dir, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(trial.Dir, "probe-"+trial.Name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Lchown(dir, trial.UID, trial.GID); err != nil && trial.UID >= 0 {
		return err
	}
	spec := trial.Spec
	spec.ID, spec.Workspace = filepath.Base(dir)+spec.ID, dir
	sb, err := b.Start(ctx, spec)
	if err != nil {
		return err
	}
	defer sb.Close(context.WithoutCancel(ctx))
	exit, err := wire.Execute(ctx, sb.Conn(), &trial.Run)
	if err != nil {
		return err
	}
	if exit.Error != "" || exit.Code != 0 {
		return fmt.Errorf("a run in the sandbox ended with %d %s", exit.Code, exit.Error)
	}
	return nil
}
