package wrapper

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/backend/agentless"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

const (
	// maxFrame bounds a frame of session-run. One frame holds all output of a cell.
	maxFrame = 16 << 20
	// shutdownGrace bounds how long session-run may take to exit after a shutdown message.
	shutdownGrace = 300 * time.Millisecond
)

// message is a frame of contract 5's protocol: a 4-byte big-endian length, then this as JSON.
type message struct {
	Type        string `json:"type"`
	ID          string `json:"id,omitempty"`
	Interpreter string `json:"interpreter,omitempty"`
	Code        string `json:"code,omitempty"`
	Stdout      string `json:"stdout,omitempty"`
	Stderr      string `json:"stderr,omitempty"`
	ExitCode    *int   `json:"exit_code,omitempty"`
}

var (
	errEnded   = errors.New("ended before it was ready") // session-run exited or was killed
	errTimeout = errors.New("has not answered in time")
)

// cell runs code in the session's interpreter, which it starts if necessary.
func (e *environment) cell(r *agentless.Run) (wire.Exit, error) {
	e.turn.Lock()
	defer e.turn.Unlock()
	if len(r.Argv) != 2 { // the program, and the type of interpreter
		return wire.Exit{}, &agentless.Refused{Err: errors.New("this environment keeps no state")}
	}
	in, fresh := e.interpreter, false
	if in != nil && !in.isAlive(e.b.cfg.PingAfter, e.b.cfg.ReadyTimeout) {
		in.end()
		in, e.interpreter = nil, nil
	}
	if in == nil {
		p, err := e.start(r)
		if err != nil {
			return wire.Exit{Code: 126, Error: err.Error(), Lost: true}, nil
		}
		in, fresh = listen(p), true
	}
	defer r.OnStop(in.p.kill)()
	if fresh {
		if err := in.expect("ready", e.b.cfg.ReadyTimeout); err != nil {
			return e.lose(r, in, wire.Exit{Code: 126, Error: "the environment's session-run " + err.Error(), Fresh: true}), nil
		}
	}
	answer, err := in.execute(r.Argv[1], r.Code)
	switch {
	case errors.Is(err, errEnded):
		return e.lose(r, in, wire.Exit{Fresh: fresh}), nil
	case err != nil:
		fmt.Fprintf(&in.said, "the environment's session-run %v; it was ended\n", err)
		return e.lose(r, in, wire.Exit{Code: 126, Fresh: fresh}), nil
	}
	e.interpreter = in
	in.used = time.Now()
	_, _ = io.WriteString(r.Stdout, answer.Stdout)
	_, _ = io.WriteString(r.Stderr, answer.Stderr)
	return wire.Exit{Code: exitCode(*answer.ExitCode), Fresh: fresh}, nil
}

// lose ends the interpreter and its state. It sets a missing exit code to the interpreter's.
func (e *environment) lose(r *agentless.Run, in *interpreter, exit wire.Exit) wire.Exit {
	e.interpreter = nil
	ended := in.end()
	if exit.Code == 0 {
		ended.Fresh = exit.Fresh
		exit = ended
		if exit.Code == 0 {
			exit.Code = 1
			fmt.Fprintln(&in.said, "the environment's session-run ended without a result")
		}
	} else {
		e.b.log.Warn("an environment's session-run failed",
			"runner", e.spec.Runner, "sandbox", e.spec.ID, "exit_code", ended.Code)
	}
	exit.Lost = true
	if said := strings.TrimSpace(in.said.String()); said != "" {
		_, _ = io.WriteString(r.Stderr, said+"\n")
	}
	return exit
}

// exitCode brings a wrapper's number into range. Python reports death by signal n as -n.
func exitCode(n int) int {
	if n < 0 && n >= -64 {
		return 128 - n
	}
	if n < 0 || n > 255 {
		return 1
	}
	return n
}

// interpreter is a running session-run. One goroutine at a time uses it.
type interpreter struct {
	p      *process
	frames chan message // closed after the last one; err is then the reason
	err    error
	gone   chan struct{} // closed by end: frames are no longer received
	said   sandbox.Tail  // what it prints to stderr
	used   time.Time
	reads  sync.WaitGroup
}

// listen receives frames from a started session-run.
func listen(p *process) *interpreter {
	in := &interpreter{p: p, frames: make(chan message), gone: make(chan struct{})}
	in.reads.Go(func() { _, _ = io.Copy(&in.said, p.stderr) })
	in.reads.Go(func() {
		defer close(in.frames)
		for {
			m, err := readMessage(p.stdout)
			if err != nil {
				in.err = err
				return
			}
			select {
			case in.frames <- m:
			case <-in.gone:
				return
			}
		}
	})
	return in
}

// readMessage allocates no more than what arrives.
func readMessage(r io.Reader) (message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return message{}, errEnded
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return message{}, fmt.Errorf("broke the protocol: a frame of %d bytes (limit %d)", n, maxFrame)
	}
	b, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil || len(b) < int(n) {
		return message{}, errEnded
	}
	var m message
	if err := json.Unmarshal(b, &m); err != nil {
		return message{}, fmt.Errorf("broke the protocol: %.200v", err)
	}
	return m, nil
}

func (in *interpreter) send(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b = append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	if _, err := in.p.stdin.Write(b); err != nil {
		return errEnded
	}
	return nil
}

// next returns the next frame and answers pings before it. With a nil timeout it waits until the
// process ends.
func (in *interpreter) next(timeout <-chan time.Time) (message, error) {
	for {
		select {
		case m, ok := <-in.frames:
			switch {
			case !ok:
				return m, in.err
			case m.Type == "ping":
				if err := in.send(message{Type: "pong"}); err != nil {
					return m, err
				}
			default:
				return m, nil
			}
		case <-timeout:
			return message{}, errTimeout
		}
	}
}

// expect waits for a frame of a type. Any other is an error.
func (in *interpreter) expect(typ string, limit time.Duration) error {
	m, err := in.next(time.After(limit))
	switch {
	case errors.Is(err, errTimeout):
		return fmt.Errorf("did not say %q within %v", typ, limit)
	case err == nil && m.Type != typ:
		return fmt.Errorf("broke the protocol: %.32q where %q was due", m.Type, typ)
	}
	return err
}

func (in *interpreter) execute(language string, code []byte) (message, error) {
	id := rand.Text() // unpredictable, so that earlier code cannot have answered it
	if err := in.send(message{Type: "execute", ID: id, Interpreter: language, Code: string(code)}); err != nil {
		return message{}, err
	}
	m, err := in.next(nil)
	if err == nil && (m.Type != "result" || m.ID != id || m.ExitCode == nil) {
		err = fmt.Errorf("broke the protocol: %.32q where the result was due", m.Type)
	}
	return m, err
}

// isAlive reports whether the interpreter can take another cell. It pings one that was idle for
// long.
func (in *interpreter) isAlive(idle, limit time.Duration) bool {
	select {
	case <-in.p.done:
		return false
	default:
	}
	if time.Since(in.used) < idle {
		return true
	}
	return in.send(message{Type: "ping"}) == nil && in.expect("pong", limit) == nil
}

// shutdown asks the interpreter to exit, then ends it.
func (in *interpreter) shutdown() {
	_ = in.p.stdin.SetWriteDeadline(time.Now().Add(shutdownGrace))
	if in.send(message{Type: "shutdown"}) == nil {
		select {
		case <-in.p.done:
		case <-time.After(shutdownGrace):
		}
	}
	in.end()
}

// end kills the interpreter and returns how it ended.
func (in *interpreter) end() wire.Exit {
	in.p.kill()
	<-in.p.done
	close(in.gone)
	in.reads.Wait()
	in.p.close()
	return in.p.exit()
}
