package agent

import (
	"os"
	"testing"
)

// TestAccountedOnce: what a run-init has told of itself is not counted again, whether or not the result waits for its end.
func TestAccountedOnce(t *testing.T) {
	for name, leaving := range map[string]int{"at once": 0, "after its end": 1} {
		t.Run(name, func(t *testing.T) {
			status, theirs, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer status.Close()
			proc, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"}, &os.ProcAttr{})
			if err != nil {
				t.Fatal(err)
			}
			p := &initProcess{proc: proc, status: status, reap: proc.Wait, leaving: make(chan struct{}, 1)}
			for range leaving {
				p.leaving <- struct{}{} // somebody else's
			}
			if _, err := theirs.WriteString(`{"user_us": 5, "sys_us": 6, "alone": true}`); err != nil {
				t.Fatal(err)
			}
			_ = theirs.Close()
			if exit, err := p.wait(); err != nil || exit.UserUS != 5 || exit.SysUS != 6 {
				t.Errorf("%+v, %v", exit, err)
			}
			if leaving == 0 {
				p.leaving <- struct{}{} // there is room again when that one has gone
			}
		})
	}
}
