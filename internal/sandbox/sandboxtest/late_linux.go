package sandboxtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// testLateChildren: what a process prints after its cell has ended comes with a later cell, marked
// and bounded.
func (s *suite) testLateChildren(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	run := func(language, code string) (own, late string) {
		t.Helper()
		res := b.Begin(t, Cell(t, language, code)).WaitFor(t, 30*time.Second)
		if res.Exit.Code != 0 || res.Exit.Lost || len(res.Stderr) > 0 {
			t.Errorf("%s: %+v %s", code, res.Exit, res.Stderr)
		}
		return splitLate(res.Stdout)
	}
	expect := func(language, code, wantOwn, wantLate string) {
		t.Helper()
		if own, late := run(language, code); own != wantOwn || late != wantLate {
			t.Errorf("%s: %q, late %q; want %q, late %q", code, own, late, wantOwn, wantLate)
		}
	}
	const text = "[late output of cell 1]\nlate\n[end of late output]\n"

	// Each child waits until a later cell releases it.
	expect("python", `
import os, subprocess, sys
def start(name, command):
    os.mkfifo('/tmp/' + name)
    return subprocess.Popen(f'read x </tmp/{name}; ' + command, shell=True)
def release(name, child):
    open('/tmp/' + name, 'w').write('\n')
    return child.wait()
first = start('first', 'echo late; echo done >/tmp/file')`, "", "")
	expect("python", "print(release('first', first), open('/tmp/file').read())", "0 done\n\n", "")
	expect("python", "print('mine')", "mine\n", text)
	expect("python", "print('mine')", "mine\n", "")
	expect("python", "first = start('errors', 'echo late >&2')", "", "")
	expect("python", "release('errors', first)", "0\n", "")
	expect("python", "1", "1\n", strings.Replace(text, "1", "5", 1))

	expect("shell", "mkfifo /tmp/gate; (read x </tmp/gate; echo late; echo done >/tmp/file2) &", "", "")
	expect("shell", "echo >/tmp/gate; wait; cat /tmp/file2", "done\n", "")
	expect("shell", "echo mine", "mine\n", text)

	// A child that floods its output is throttled and costs no memory.
	expect("python", `
flood = start('flood', 'exec ' + sys.executable + ''' -c "
import os, time
end, n = time.monotonic() + 1, 0
while time.monotonic() < end: n += os.write(1, b'x' * 4096)
open('/tmp/written', 'w').write(str(n))"''')`, "", "")
	expect("python", "print(release('flood', flood), int(open('/tmp/written').read()) < 4 << 20)", "0 True\n", "")
	own, late := run("python", "print('mine', open('/tmp/written').read())")
	var written int
	if _, err := fmt.Sscanf(own, "mine %d\n", &written); err != nil || written <= 8<<10 {
		t.Errorf("a flood: %q", own)
	}
	if want := fmt.Sprintf("[late output of cell 8]\n%s\n[%d bytes of late output were left out]\n[end of late output]\n", strings.Repeat("x", 8<<10), written-8<<10); late != want {
		t.Errorf("of %d bytes: %.100q ... %q", written, late, late[max(0, len(late)-100):])
	}

	// Of many waiting children, those of the oldest cells lose their pipes.
	for i := range 18 {
		expect("python", fmt.Sprintf("waiting = %s; waiting.append(start('w%d', 'echo late'))", map[bool]string{true: "[]", false: "waiting"}[i == 0], i), "", "")
	}
	expect("python", "print(*(release(f'w{i}', child) for i, child in enumerate(waiting)))", "-13 -13"+strings.Repeat(" 0", 16)+"\n", "")
	_, late = run("python", "print('mine')")
	lines := strings.Split(late, "\n")
	if n := strings.Count(late, "]\nlate\n"); n != 16 || !slices.Contains(lines, "[late output of cell 28]") || slices.Contains(lines, "[late output of cell 12]") {
		t.Errorf("of sixteen cells: %d, %q", n, late)
	}
	b.Alive(t)
}
