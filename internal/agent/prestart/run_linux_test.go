package prestart

import (
	"os"
	"testing"
)

// TestAccountedOnce: usage that run-init has reported is not counted again, whether or not the
// result waits for its exit.
func TestAccountedOnce(t *testing.T) {
	for name, exiting := range map[string]int{"at once": 0, "after its end": 1} {
		t.Run(name, func(t *testing.T) {
			status, theirs, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer status.Close()
			process, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"}, &os.ProcAttr{})
			if err != nil {
				t.Fatal(err)
			}
			p := &Run{proc: process, status: status, reap: process.Wait, exiting: make(chan struct{}, 1)}
			for range exiting {
				p.exiting <- struct{}{} // another run's
			}
			if _, err := theirs.WriteString(`{"user_us": 5, "sys_us": 6, "alone": true}`); err != nil {
				t.Fatal(err)
			}
			_ = theirs.Close()
			if exit, err := p.Wait(); err != nil || exit.UserUS != 5 || exit.SysUS != 6 {
				t.Errorf("%+v, %v", exit, err)
			}
			if exiting == 0 {
				p.exiting <- struct{}{} // there is room again when it has exited
			}
		})
	}
}
