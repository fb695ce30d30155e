package prestart

import (
	"encoding/json"
	"os"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/wire"
)

// bootedProgram is a program that was started before its run, where starting takes most of a run's
// time. It is the run's own program with the run's own arguments, confined like any other, and
// serves one run. It has seen nothing of any run: its environment is the runner's own.
type bootedProgram struct {
	argv []string
	dir  string
	env  startEnv
}

// bootFor returns a function that boots the program of runs like r, which may be nil. It is nil if
// the program cannot wait for its code.
func bootFor(r *wire.Run) func(waiting) bool {
	if r == nil || r.Prestart == nil {
		return nil
	}
	spec := &runinit.Spec{Prestart: true, Argv: r.Argv, File: r.File, Env: r.Prestart.Env, Helper: r.Prestart.Helper, Dir: "/tmp"}
	return func(p waiting) bool { return p.(*isolated).boot(spec, r.Prestart.Reads) }
}

// maxBootSpec is the size of a spec that fits into a pipe without a reader.
const maxBootSpec = 32 << 10

// boot has a waiting run-init start the program.
func (p *isolated) boot(spec *runinit.Spec, reads []string) bool {
	text, err := json.Marshal(spec)
	if err != nil || len(text) > maxBootSpec {
		return false
	}
	p.booted = newBootedProgram(spec, reads)
	_, err = p.spec.Write(append(text, '\n'))
	return err == nil
}

func newBootedProgram(spec *runinit.Spec, reads []string) *bootedProgram {
	if len(spec.Argv) > 0 && !strings.Contains(spec.Argv[0], "/") {
		reads = append([]string{"PATH"}, reads...)
	}
	return &bootedProgram{argv: spec.Argv, dir: spec.Dir, env: startEnv{vars: spec.Env, reads: reads}}
}

// suits reports whether the run has this program, and would not have started it differently.
func (b *bootedProgram) suits(spec *runinit.Spec) bool {
	return !spec.Channel && !spec.Displays && spec.Dir == b.dir && slices.Equal(spec.Argv, b.argv) && b.env.allows(spec.Env)
}

// dropOutput drops output that a booted program printed before it got a run.
func (p *isolated) dropOutput() {
	buf := make([]byte, 4<<10)
	for _, f := range []*os.File{p.Stdout, p.Stderr} {
		runinit.Drain(f, buf, func([]byte) bool { return true })
	}
}
