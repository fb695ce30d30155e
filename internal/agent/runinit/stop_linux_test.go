package runinit

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"
)

// TestAwaitStop: a program that stops with an exit status as its name has ended with that status.
// Any other stop is not its end.
func TestAwaitStop(t *testing.T) {
	const resumed = "(while kill -CONT $$; do :; done) 2>/dev/null & "
	for script, code := range map[string]int{
		"printf 'exit 3' >/proc/$$/comm; kill -STOP $$; exit 4":             3,
		"printf 'exit 0' >/proc/$$/comm; kill -STOP $$; exit 4":             0,
		"printf 'exit 0' >/proc/$$/comm; exit 4":                            4,
		resumed + "printf 'exit 256' >/proc/$$/comm; kill -STOP $$; exit 4": 4,
		resumed + "printf 'exit -1' >/proc/$$/comm; kill -STOP $$; exit 4":  4,
		resumed + "printf 'exit' >/proc/$$/comm; kill -STOP $$; exit 4":     4,
		resumed + "kill -STOP $$; exit 4":                                   4,
		"kill -KILL $$":                                                     137,
	} {
		cmd := exec.Command("sh", "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := &program{pid: cmd.Process.Pid}
		exit, err := p.awaitStop()
		if err != nil || exit.Code != code || exit.MaxRSSB == 0 {
			t.Errorf("%s: %+v: %v", script, exit, err)
		}
		if err := syscall.Kill(cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) || p.dying {
			t.Errorf("%s: not the last process of its namespace, and still there: %v", script, err)
		}
		_ = cmd.Process.Release()
	}
}
