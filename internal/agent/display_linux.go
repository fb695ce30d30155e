package agent

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// displayDir is where a program that is not an interpreter of ours leaves what it wants to be displayed, in
// the run's private directory.
const displayDir = ".display"

// displayVariable names that directory in the program's environment.
const displayVariable = "SANDBOX_DISPLAY"

const (
	maxDisplay  = 16 << 20 // of all displays of a run
	maxDisplays = 64       // of one run
)

// collectDisplays reads what a program has left in displayDir. The program may have put anything there: what
// is not as it should be is passed over.
func collectDisplays(private *os.Root) []shown {
	dir, err := private.OpenRoot(displayDir + "/.") // not a pipe in its place
	if err != nil {
		return nil
	}
	defer dir.Close()
	left := int64(maxDisplay)
	var all []shown
	lines := bufio.NewScanner(bytes.NewReader(readDisplay(dir, "index", 64<<10)))
	for lines.Scan() && len(all) < maxDisplays {
		f := strings.Fields(lines.Text())
		if len(f) != 2 || len(f[0]) > 255 {
			continue
		}
		if data := readDisplay(dir, f[1], left); data != nil {
			left -= int64(len(data))
			all = append(all, shown{f[0], data})
		}
	}
	return all
}

// readDisplay reads a regular file of at most limit bytes; nil if it is anything else.
func readDisplay(dir *os.Root, name string, limit int64) []byte {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 || fi.Size() > limit {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil
	}
	return data
}
