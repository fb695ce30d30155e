package pool

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReadMachine reads real and broken files of the kernel. A broken one counts as no information.
func TestReadMachine(t *testing.T) {
	write := func(text string) string {
		name := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	stat := write("cpu  10 20 30 400 50 6 7 8 9 1\ncpu0 5 10 15 200 25 3 3 4 4 0\ncpu1 5 10 15 200 25 3 4 4 5 1\nintr 99 1\n")
	if busy, idle, n := processors(stat); busy != 10+20+30+6+7+8 || idle != 450 || n != 2 {
		t.Errorf("busy %d, idle %d, %d processors", busy, idle, n)
	}
	meminfo := write("MemTotal:       24689764 kB\nMemFree:          123456 kB\nMemAvailable:    9876543 kB\n")
	if total, free := memory(meminfo); total != 24689764 || free != 9876543 {
		t.Errorf("%d of %d KB", free, total)
	}
	for _, text := range []string{"", "nonsense\n", "cpu x y\nMemTotal: many\n"} {
		if _, _, n := processors(write(text)); n != 0 {
			t.Errorf("%q: %d processors", text, n)
		}
		if total, _ := memory(write(text)); total != 0 {
			t.Errorf("%q: %d KB", text, total)
		}
	}
	if busy, idle, n := processors("/proc/stat"); n == 0 || busy == 0 || idle == 0 {
		t.Errorf("this machine: busy %d, idle %d, %d processors", busy, idle, n)
	}
	if total, free := memory("/proc/meminfo"); free == 0 || total < free {
		t.Errorf("this machine: %d of %d KB", free, total)
	}
}
