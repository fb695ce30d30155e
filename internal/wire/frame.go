// Package wire is the protocol between the server and the agent inside a sandbox.
//
// A frame is a 4-byte big-endian length and that many bytes: JSON, or payload in a binary form. The
// agent's hello comes first. Then both sides open streams on one connection: the server opens run
// streams, the agent dial streams, which are net.Conns. Each stream has flow control. The server
// treats the agent as hostile: a breach of the protocol ends the connection with an error that
// matches [ErrProtocol].
//
// The package knows nothing of processes, sandboxes or sessions, and imports only the standard
// library.
package wire

import (
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"
)

// Version of the protocol. Server and agent are built together, so it must match exactly.
const Version = 3

const (
	// MaxData is the maximum payload of one frame.
	MaxData = 64 << 10
	// Window is how much payload a sender may send before the receiver has consumed it. A frame
	// counts as its payload plus frameCost; otherwise a million frames of one byte would take a
	// hundred times the window.
	Window = 256 << 10

	frameCost    = 256
	maxStreams   = 256
	maxHello     = 4 << 10
	maxFromAgent = 96 << 10 // MaxData, and some more
	maxToAgent   = 16 << 20 // a run frame carries code and environment
	maxMIME      = 255
	maxFile      = 255
	maxHost      = 253 + len(":65535")
	maxExitError = 4 << 10
)

// ClearMIME is the type of a display that withdraws what the run has printed and shown before it.
const ClearMIME = "application/vnd.mcp-code-sandbox.clear"

// MaxClears is how often a run may show as much again by withdrawing what it showed.
const MaxClears = 1000

// ErrProtocol matches every error that a peer causes by breaking the protocol.
var ErrProtocol = errors.New("wire: protocol violation")

// Type is the type of a frame.
type Type string

// The frame types. Payload types are Stdout, Stderr, Display and Data.
const (
	TypeHello     Type = "hello"     // agent: first frame
	TypePing      Type = "ping"      // server
	TypePong      Type = "pong"      // agent
	TypeRun       Type = "run"       // server: opens a stream
	TypeDial      Type = "dial"      // agent: opens a stream to the server's door
	TypeStdout    Type = "stdout"    // agent, on a run
	TypeStderr    Type = "stderr"    // agent, on a run
	TypeDisplay   Type = "display"   // agent, on a run: MIME, File and bytes; More if it continues
	TypeExit      Type = "exit"      // agent: the last frame of a run
	TypeInterrupt Type = "interrupt" // server, on a run: ask the program to stop
	TypeKill      Type = "kill"      // server, on a run: end it now
	TypeData      Type = "data"      // both, on a dial
	TypeEOF       Type = "eof"       // both, on a dial: no more data from this side
	TypeClose     Type = "close"     // both: the last frame of a dial from this side
	TypeWindow    Type = "window"    // both: the receiver consumed frames worth Credit
)

func (t Type) payload() bool {
	return t == TypeStdout || t == TypeStderr || t == TypeDisplay || t == TypeData
}

// Frame is a frame of any type. Its type decides which fields are set.
type Frame struct {
	Type   Type   `json:"type"`
	ID     uint64 `json:"id,omitempty"`
	Data   []byte `json:"-"` // payload has its own form, with the next three fields; see codec.go
	MIME   string `json:"-"`
	File   string `json:"-"` // the path in the workspace where the code saved what it shows
	More   bool   `json:"-"`
	Credit int    `json:"credit,omitempty"`
	// Host is the name and port that a process connected to, if the agent's resolver led it here.
	Host  string `json:"host,omitempty"`
	Hello *Hello `json:"hello,omitempty"`
	Run   *Run   `json:"run,omitempty"`
	Exit  *Exit  `json:"exit,omitempty"`

	memory []byte // of a received payload frame; see free
}

// Hello is the agent's greeting: it is ready to run code.
type Hello struct {
	Version int    `json:"version"`
	Agent   string `json:"agent"` // the agent's build, for the log
	// Isolation says, for the log, what keeps runs apart if they share namespaces, or why nothing
	// does.
	Isolation string `json:"isolation,omitempty"`
}

// Run starts a program.
type Run struct {
	// Argv is the program; the argument "{file}" is replaced by the path of the code file.
	Argv []string `json:"argv"`
	// File is the base name of the code file, for example main.py. The agent chooses its directory.
	File   string            `json:"file,omitempty"`
	Code   []byte            `json:"code,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
	Limits RunLimits         `json:"limits"`
	// Displays asks for the files that the program leaves in the directory $SANDBOX_DISPLAY and
	// announces in its named pipe index with lines "<MIME type> <name> [<path>]".
	Displays bool `json:"displays,omitempty"`
	// Driver is the source of the runner's driver; the argument "{driver}" is replaced by its path.
	Driver []byte `json:"driver,omitempty"`
	// Interpreter, when set, names a live interpreter: Code is its next cell. If it does not exist,
	// Argv starts it. Cells of one interpreter run one after the other.
	Interpreter string `json:"interpreter,omitempty"`
	// Restart ends that interpreter first, if it exists.
	Restart bool `json:"restart,omitempty"`
	// CellEnv are variables that the interpreter has only while it runs this cell.
	CellEnv map[string]string `json:"cell_env,omitempty"`
	// Zygote, when set, may fork the program in place of Argv.
	Zygote *Zygote `json:"zygote,omitempty"`
	// Prestart, when set, lets the agent start Argv again after the run, for the next one.
	Prestart *Prestart `json:"prestart,omitempty"`
	// Ahead says that a processor is idle, so the agent may prepare for the next run while this one
	// runs, and thoroughly.
	Ahead bool `json:"ahead,omitempty"`
	// Hosts are rules for the names that the agent's resolver knows during the run, each a name, or
	// "*." and a name, with a port: "db.example.com:5432", "*.example.com:443".
	Hosts []string `json:"hosts,omitempty"`
	// Held asks for the size of deleted files that are still open in the sandbox. No program runs.
	Held bool `json:"held,omitempty"`
}

// Prestart describes a program that can start before its code is known. Its standard input is then
// a socket, on which it reports that it is ready and reads the path of the code and the
// environment.
type Prestart struct {
	Env   map[string]string `json:"env,omitempty"`   // the runner's own, without the caller's variables
	Reads []string          `json:"reads,omitempty"` // prefixes of the variables that it reads while it starts
	// Helper, when set, starts beside the program and is connected to its descriptor 3, a socket.
	Helper []string `json:"helper,omitempty"`
}

// Zygote describes an interpreter with libraries imported, that forks a process for each run. The
// first frame that names it carries its source; after that the name is enough. See
// docs/warm-start.md.
type Zygote struct {
	Name    string            `json:"name"`
	Argv    []string          `json:"argv,omitempty"` // the path of its source is added
	Env     map[string]string `json:"env,omitempty"`
	Reads   []string          `json:"reads,omitempty"`   // prefixes of the variables that it reads while it starts
	PerRun  []string          `json:"per_run,omitempty"` // variables among them that a run may set
	Source  []byte            `json:"source,omitempty"`
	Preload []string          `json:"preload,omitempty"` // modules to import
	OnUse   []string          `json:"on_use,omitempty"`  // modules to import once a run has mentioned them
}

// RunLimits are the limits that the agent sets on the run's processes. Zero means none.
type RunLimits struct {
	TmpBytes  int64 `json:"tmp_bytes,omitempty"`
	FileBytes int64 `json:"file_bytes,omitempty"`
}

// Exit is how a run's main process ended.
type Exit struct {
	Code   int `json:"code"`             // exit status; 128+Signal if a signal ended it
	Signal int `json:"signal,omitempty"` // the signal that ended it
	// Error says why the program could not be started. Code is 126 or 127 then. Send cuts it at 4
	// KiB.
	Error   string `json:"error,omitempty"`
	UserUS  int64  `json:"user_us"`
	SysUS   int64  `json:"sys_us"`
	MaxRSSB int64  `json:"max_rss_bytes"`
	// OOMKills and PIDsRefused count the hits of the sandbox's memory and pid limits during the
	// run, by this run or another one. They are set where the agent can see it and the backend
	// cannot.
	OOMKills    uint64 `json:"oom_kills,omitempty"`
	PIDsRefused uint64 `json:"pids_refused,omitempty"`
	// Fresh says that the interpreter was started for this cell, Lost that it has ended, with its
	// state.
	Fresh bool `json:"fresh,omitempty"`
	Lost  bool `json:"lost,omitempty"`
	// Forked says that a zygote forked the program.
	Forked bool `json:"forked,omitempty"`
	// HeldBytes and HeldMore answer a Run with Held. HeldMore says that there may be more.
	HeldBytes int64 `json:"held_bytes,omitempty"`
	HeldMore  bool  `json:"held_more,omitempty"`
}

// The fields that a frame has, as bits.
const (
	hasID = 1 << iota
	hasData
	hasMIME
	hasFile
	hasMore
	hasCredit
	hasHello
	hasRun
	hasExit
	hasHost
)

func (f *Frame) fields() int {
	set := 0
	add := func(has bool, bit int) {
		if has {
			set |= bit
		}
	}
	add(f.ID != 0, hasID)
	add(len(f.Data) > 0, hasData)
	add(f.MIME != "", hasMIME)
	add(f.File != "", hasFile)
	add(f.More, hasMore)
	add(f.Credit != 0, hasCredit)
	add(f.Hello != nil, hasHello)
	add(f.Run != nil, hasRun)
	add(f.Exit != nil, hasExit)
	add(f.Host != "", hasHost)
	return set
}

// check reports whether f is well-formed: a known type with exactly the fields that it must have,
// each in its range. Other fields would take memory that no window accounts for.
func (f *Frame) check() error {
	var must, may int
	switch f.Type {
	case TypeHello:
		must = hasHello
	case TypePing, TypePong:
	case TypeRun:
		must = hasID | hasRun
	case TypeDial:
		must, may = hasID, hasHost
	case TypeInterrupt, TypeKill, TypeEOF, TypeClose:
		must = hasID
	case TypeStdout, TypeStderr, TypeData:
		must = hasID | hasData
	case TypeDisplay:
		must, may = hasID|hasData, hasMIME|hasFile|hasMore
	case TypeExit:
		must = hasID | hasExit
	case TypeWindow:
		must = hasID | hasCredit
	default:
		return fmt.Errorf("unknown frame type %.32q", f.Type)
	}
	if set := f.fields(); set&must != must || set&^(must|may) != 0 {
		return fmt.Errorf("a %q frame with the wrong fields", f.Type)
	}
	if len(f.Data) > MaxData {
		return fmt.Errorf("%d bytes of payload in one frame (limit %d)", len(f.Data), MaxData)
	}
	if len(f.File) > maxFile || !utf8.ValidString(f.File) {
		return fmt.Errorf("a file name that is not UTF-8 or has more than %d bytes", maxFile)
	}
	if len(f.MIME) > maxMIME || !utf8.ValidString(f.MIME) {
		return fmt.Errorf("a MIME type that is not UTF-8 or has more than %d bytes", maxMIME)
	}
	if len(f.Host) > maxHost {
		return fmt.Errorf("a host of %d bytes (limit %d)", len(f.Host), maxHost)
	}
	if f.Exit != nil {
		return f.Exit.check()
	}
	return nil
}

// check refuses values that would overflow as durations, or make a counter run backwards.
func (e *Exit) check() error {
	if e.Code < 0 || e.Code > 255 || e.Signal < 0 || e.Signal > 64 {
		return fmt.Errorf("exit code %d, signal %d", e.Code, e.Signal)
	}
	for _, us := range []int64{e.UserUS, e.SysUS} {
		if us < 0 || us > math.MaxInt64/1000 {
			return fmt.Errorf("exit after %d µs", us)
		}
	}
	if e.MaxRSSB < 0 || e.HeldBytes < 0 || len(e.Error) > maxExitError {
		return errors.New("exit out of range")
	}
	return nil
}

// WriteHello sends a hello with nothing but the agent's name.
func WriteHello(w io.Writer, agent string) error { return SendHello(w, Hello{Agent: agent}) }

// SendHello sends the agent's first frame, with the protocol's version filled in.
func SendHello(w io.Writer, h Hello) error {
	h.Version = Version
	var enc encoder
	b, err := enc.encode(&Frame{Type: TypeHello, Hello: &h}, maxHello)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// ReadHello reads the agent's first frame and no byte more. Backends call it before they return a
// sandbox. It has no timeout: close r, or set its deadline, to end it.
func ReadHello(r io.Reader) (Hello, error) {
	dec := decoder{r: r, limit: maxHello}
	f, err := dec.decode()
	if err != nil {
		return Hello{}, err
	}
	if f.Type != TypeHello {
		return Hello{}, fmt.Errorf("%w: %q before hello", ErrProtocol, f.Type)
	}
	if f.Hello.Version != Version {
		return Hello{}, fmt.Errorf("%w: agent speaks version %d, server %d", ErrProtocol, f.Hello.Version, Version)
	}
	return *f.Hello, nil
}
