package main

import (
	"context"
	"io"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"mcp-code-sandbox": main})
}

// run runs the program, which cannot start itself again.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	return program{}.run(ctx, args, environ, stdin, stdout, stderr)
}

// endShared ends the servers that windows on root share.
func endShared(t *testing.T, root string) {
	t.Helper()
	if sockets, _ := filepath.Glob(root + "/stdio/*.sock"); len(sockets) == 0 {
		return
	}
	out := newSyncBuffer()
	if code := run(context.Background(), []string{"stdio", "--stop"}, []string{"SANDBOX_ROOT=" + root}, nil, out, out); code != exitOK {
		text, _ := out.state()
		t.Errorf("stdio --stop: %d %s", code, text)
	}
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			root := env.WorkDir + "/root"
			env.Setenv("SANDBOX_ROOT", root)
			env.Defer(func() { endShared(t, root) })
			return nil
		},
	})
}
