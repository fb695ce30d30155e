package runinit

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// DisplayDir is the directory, in the run's private one, where a program leaves files to be
// displayed. DisplayVariable names it in the program's environment.
const (
	DisplayDir      = ".display"
	DisplayVariable = "SANDBOX_DISPLAY"
)

const (
	maxDisplay  = 16 << 20 // of all displays of a run
	maxDisplays = 64       // of one run
)

// collectDisplays reads the files in DisplayDir. The program may have put anything there; it skips
// entries that are not well-formed.
func collectDisplays(private *os.Root) []Display {
	dir, err := private.OpenRoot(DisplayDir + "/.") // "/." fails on a pipe
	if err != nil {
		return nil
	}
	defer dir.Close()
	left := int64(maxDisplay)
	var all []Display
	lines := bufio.NewScanner(bytes.NewReader(readDisplay(dir, "index", 64<<10)))
	for lines.Scan() && len(all) < maxDisplays {
		f := strings.Fields(lines.Text())
		if len(f) != 2 || len(f[0]) > 255 {
			continue
		}
		if data := readDisplay(dir, f[1], left); data != nil {
			left -= int64(len(data))
			all = append(all, Display{f[0], data})
		}
	}
	return all
}

// readDisplay reads a regular file of at most limit bytes. It returns nil for anything else.
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
