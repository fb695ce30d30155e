package runinit

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/wire"
)

// DisplayDir is the directory, in the run's private one, where a program leaves files to be shown.
// DisplayVariable names it in the environment. The program announces each file in the named pipe
// displayIndex, and waits until the file is gone: then the display has its place in the output.
const (
	DisplayDir      = ".display"
	DisplayVariable = "SANDBOX_DISPLAY"
	displayIndex    = "index"
)

const (
	maxDisplay  = 16 << 20 // of all displays of a run
	maxDisplays = 64       // of one run
	maxMIME     = 255      // bytes, as for wire
	maxFile     = 255      // bytes of a path, as for wire

	// MaxDisplays limits what run-init sends to the agent: all displays in base64, as JSON.
	MaxDisplays = 2 * maxDisplay
)

// Display is something that a program left to be displayed.
type Display struct {
	MIME string `json:"mime"`
	File string `json:"file,omitempty"` // where the code saved it, below /data
	Data []byte `json:"data"`
}

// displays reads the files that a run shows. The program chooses everything about them, so it skips
// what is not well-formed.
type displays struct {
	dir    *os.Root
	count  int
	size   int64
	clears int // that may still come; only cells may withdraw what they have shown
}

// read returns the display that a program announced with "<MIME type> <name> [<path>]".
func (ds *displays) read(fields []string) (d Display, ok bool) {
	if len(fields) < 2 || len(fields) > 3 || len(fields[0]) > maxMIME {
		return d, false
	}
	if fields[0] == wire.ClearMIME && ds.clears > 0 {
		ds.clears--
		ds.count, ds.size = 0, 0
		return Display{MIME: wire.ClearMIME, Data: []byte("\n")}, true
	}
	if ds.count == maxDisplays {
		return d, false
	}
	d.MIME, d.Data = fields[0], readDisplay(ds.dir, fields[1], maxDisplay-ds.size)
	if d.Data == nil {
		return d, false
	}
	if len(fields) == 3 {
		d.File = savedAs(fields[2])
	}
	ds.count, ds.size = ds.count+1, ds.size+int64(len(d.Data))
	return d, true
}

// savedAs decodes the path of a display. It returns "" for one that leads out of the workspace.
func savedAs(encoded string) string {
	path, err := url.PathUnescape(encoded)
	if err != nil || len(path) > maxFile || !utf8.ValidString(path) || !filepath.IsLocal(path) {
		return ""
	}
	return path
}

// settle tells the program that its display has its place, or that it has none.
func (ds *displays) settle(name string) {
	if isPlain(name) {
		_ = ds.dir.Remove(name)
	}
}

// isPlain reports whether a name has no directory. On gVisor, os.Root follows a link to one.
func isPlain(name string) bool { return name == filepath.Base(name) }

// readDisplay reads a regular file of at most limit bytes. It returns nil for anything else.
func readDisplay(dir *os.Root, name string, limit int64) []byte {
	if !isPlain(name) {
		return nil
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > limit {
		return nil
	}
	data := make([]byte, fi.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil
	}
	return data
}

// displayPipe passes the displays of a program that is no interpreter to the agent. A nil one does
// nothing.
type displayPipe struct {
	displays
	index, hold *os.File      // its ends; hold is open, so that the pipe does not end between displays
	sent        chan struct{} // the agent has sent a display; closed when it has hung up
	done        chan struct{}
}

// openDisplays makes the directory for displays and its pipe. It returns nil if it cannot: a
// program that a zygote forked may have put something in their place.
func openDisplays(private string) *displayPipe {
	if err := os.Mkdir(filepath.Join(private, DisplayDir), 0o700); err != nil {
		return nil
	}
	root, err := os.OpenRoot(private)
	if err != nil {
		return nil
	}
	defer root.Close()
	dir, err := root.OpenRoot(DisplayDir + "/.") // "/." fails on a pipe
	if err != nil {
		return nil
	}
	p := &displayPipe{displays: displays{dir: dir}, sent: make(chan struct{}, 1), done: make(chan struct{})}
	if p.index, p.hold, err = fifo(dir, displayIndex); err != nil {
		_ = dir.Close()
		return nil
	}
	return p
}

// serve passes displays on until end is called.
func (p *displayPipe) serve(agent io.Writer) {
	if p == nil {
		return
	}
	defer close(p.done)
	lines, passed := bufio.NewReaderSize(&leftover{p.index, maxLeftover}, maxLine), json.NewEncoder(agent)
	for {
		line, err := lines.ReadSlice('\n')
		for tooLong := err; errors.Is(tooLong, bufio.ErrBufferFull); line = nil {
			_, tooLong = lines.ReadSlice('\n')
		}
		if f := strings.Fields(string(line)); len(f) > 1 {
			if d, ok := p.read(f); ok && passed.Encode(d) == nil {
				<-p.sent
			}
			p.settle(f[1])
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// acknowledge is called when the agent has sent a display.
func (p *displayPipe) acknowledge() {
	if p != nil {
		p.sent <- struct{}{}
	}
}

// hangUp is called when the agent sends no more displays.
func (p *displayPipe) hangUp() {
	if p != nil {
		close(p.sent)
	}
}

// end returns when everything that was announced has been passed on.
func (p *displayPipe) end() {
	if p == nil {
		return
	}
	_ = p.index.SetReadDeadline(time.Now())
	<-p.done
}

// leftover reads a pipe to its end or, once its read deadline has passed, until it is empty. Then
// it reads at most left bytes: a process may go on writing.
type leftover struct {
	pipe *os.File
	left int
}

func (l *leftover) Read(buf []byte) (n int, err error) {
	if n, err = l.pipe.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || l.left <= 0 {
		return n, err
	}
	Drain(l.pipe, buf, func(got []byte) bool {
		n = len(got)
		return false
	})
	if l.left -= n; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
