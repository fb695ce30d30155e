package prestart

import "testing"

// TestOwns: a program that waits for its run holds no file of the workspace.
func TestOwns(t *testing.T) {
	l := NewLandlock(Settings{}, 0)
	l.inits[2] = true
	l.kept[3] = kept{dir: "zygote"}
	l.kept[4] = kept{program: 5}
	for pid, want := range map[int]bool{2: true, 3: true, 4: true, 5: true, 6: false} {
		if l.Owns(pid) != want {
			t.Errorf("Owns(%d) = %v", pid, !want)
		}
	}
}
