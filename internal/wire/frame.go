// Package wire is the protocol between the server and the agent inside a sandbox.
//
// A frame is a 4-byte big-endian length and that many bytes of JSON. The agent's hello comes first; then
// both sides open streams on one connection: the server run streams, the agent dial streams. Payload is
// flow-controlled per stream. The server treats the agent as hostile: what breaks the protocol ends the
// connection with an error that matches [ErrProtocol].
//
// The package knows nothing of processes, sandboxes or sessions, and imports only the standard library.
package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Version of the protocol. Server and agent are built together, so it must match exactly.
const Version = 1

const (
	// MaxData is the most payload that one frame carries.
	MaxData = 32 << 10
	// Window is how much payload a sender may have on the way that the receiver has not consumed.
	Window = 256 << 10

	maxStreams   = 256
	maxFromAgent = 64 << 10 // MaxData in base64, and change
	maxToAgent   = 16 << 20 // a run frame carries code and environment
)

// ErrProtocol is matched by the errors that a peer's breach of the protocol causes.
var ErrProtocol = errors.New("wire: protocol violation")

// Type says what a frame is.
type Type string

// The frame types. Payload types are Stdout, Stderr, Display and Data.
const (
	TypeHello     Type = "hello"     // agent: first frame
	TypePing      Type = "ping"      // server
	TypePong      Type = "pong"      // agent
	TypeRun       Type = "run"       // server: opens a stream
	TypeDial      Type = "dial"      // agent: opens a stream to the server's proxy
	TypeStdout    Type = "stdout"    // agent, on a run
	TypeStderr    Type = "stderr"    // agent, on a run
	TypeDisplay   Type = "display"   // agent, on a run: MIME and bytes, More while it goes on
	TypeExit      Type = "exit"      // agent: the last frame of a run
	TypeInterrupt Type = "interrupt" // server, on a run: ask the program to stop
	TypeKill      Type = "kill"      // server, on a run: end it now
	TypeData      Type = "data"      // both, on a dial
	TypeEOF       Type = "eof"       // both, on a dial: no more data from this side
	TypeClose     Type = "close"     // both: the last frame of a dial from this side
	TypeWindow    Type = "window"    // both: the receiver consumed Credit bytes
)

func (t Type) payload() bool {
	return t == TypeStdout || t == TypeStderr || t == TypeDisplay || t == TypeData
}

// Frame is every frame; which fields are set depends on its type.
type Frame struct {
	Type   Type   `json:"type"`
	ID     uint64 `json:"id,omitempty"`
	Data   []byte `json:"data,omitempty"`
	MIME   string `json:"mime,omitempty"`
	More   bool   `json:"more,omitempty"`
	Credit int    `json:"credit,omitempty"`
	Hello  *Hello `json:"hello,omitempty"`
	Run    *Run   `json:"run,omitempty"`
	Exit   *Exit  `json:"exit,omitempty"`
}

// Hello is the agent's greeting: it is ready to run code.
type Hello struct {
	Version int    `json:"version"`
	Agent   string `json:"agent"` // the agent's build, for the log
}

// Run starts a program.
type Run struct {
	// Argv is the program; the argument "{file}" is replaced by the path of the code file.
	Argv []string `json:"argv"`
	// File is the base name of the code file, for example main.py; its private directory is the agent's choice.
	File   string            `json:"file,omitempty"`
	Code   []byte            `json:"code,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
	Limits RunLimits         `json:"limits"`
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
	// Error is set when the program could not be started; Code is then 126 or 127.
	Error   string `json:"error,omitempty"`
	UserUS  int64  `json:"user_us"`
	SysUS   int64  `json:"sys_us"`
	MaxRSSB int64  `json:"max_rss_bytes"`
}

// writeFrame appends nothing to w but one whole frame, in one Write.
func writeFrame(w io.Writer, f *Frame) error {
	var b bytes.Buffer
	b.Write([]byte{0, 0, 0, 0})
	if err := json.NewEncoder(&b).Encode(f); err != nil {
		return fmt.Errorf("wire: encode %s: %w", f.Type, err)
	}
	buf := b.Bytes()
	binary.BigEndian.PutUint32(buf, uint32(len(buf)-4))
	_, err := w.Write(buf)
	return err
}

// readFrame reads one frame of at most limit bytes and no byte more.
func readFrame(r io.Reader, limit int) (*Frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || uint64(n) > uint64(limit) {
		return nil, fmt.Errorf("%w: frame of %d bytes (limit %d)", ErrProtocol, n, limit)
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(r, buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(buf))
	dec.DisallowUnknownFields()
	var f Frame
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrProtocol, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: data after the frame's JSON", ErrProtocol)
	}
	return &f, nil
}

// WriteHello sends the agent's first frame.
func WriteHello(w io.Writer, agent string) error {
	return writeFrame(w, &Frame{Type: TypeHello, Hello: &Hello{Version: Version, Agent: agent}})
}

// ReadHello reads the agent's first frame and no byte more. Backends call it before they return a sandbox.
func ReadHello(r io.Reader) (Hello, error) {
	f, err := readFrame(r, maxFromAgent)
	if err != nil {
		return Hello{}, err
	}
	if f.Type != TypeHello || f.Hello == nil {
		return Hello{}, fmt.Errorf("%w: %q before hello", ErrProtocol, f.Type)
	}
	if f.Hello.Version != Version {
		return Hello{}, fmt.Errorf("%w: agent speaks version %d, server %d", ErrProtocol, f.Hello.Version, Version)
	}
	return *f.Hello, nil
}
