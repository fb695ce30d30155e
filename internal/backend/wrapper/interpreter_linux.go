package wrapper

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/wire"
)

// maxFrame bounds what session-run sends at once; a result's output is in one frame.
const maxFrame = 16 << 20

// leaveGrace is how long session-run has to heed a shutdown.
const leaveGrace = 300 * time.Millisecond

// message is every frame of contract 5's protocol: a 4-byte big-endian length and JSON.
type message struct {
	Type        string `json:"type"`
	ID          string `json:"id,omitempty"`
	Interpreter string `json:"interpreter,omitempty"`
	Code        string `json:"code,omitempty"`
	Stdout      string `json:"stdout,omitempty"`
	Stderr      string `json:"stderr,omitempty"`
	ExitCode    *int   `json:"exit_code,omitempty"`
}

// interpreter is a session-run that lives on. One goroutine at a time uses it.
type interpreter struct {
	p      *process
	frames chan message // closed when no more come; then err is why
	err    error
	gone   chan struct{} // closed by drop: nobody listens any more
	said   tail          // on its stderr
	used   time.Time
	reads  sync.WaitGroup
}

// cell runs the code in the session's interpreter, which it starts if there is none.
func (w *wrapped) cell(s *wire.Stream, r *wire.Run) wire.Exit {
	w.turn.Lock()
	defer w.turn.Unlock()
	if len(r.Argv) != 2 { // program and interpreter type
		return wire.Exit{Code: 126, Error: "this environment keeps no state"}
	}
	in, fresh := w.state, false
	if in != nil && !in.alive(w.b.cfg.PingAfter, w.b.cfg.ReadyTimeout) {
		in.drop()
		in, w.state = nil, nil
	}
	if in == nil {
		p, err := w.start(r.Argv[0])
		if err != nil {
			return wire.Exit{Code: 126, Error: err.Error(), Lost: true}
		}
		in, fresh = listen(p), true
	}
	go obey(s, in.p)
	if fresh {
		if err := in.expect("ready", w.b.cfg.ReadyTimeout); err != nil {
			return w.lose(s, in, wire.Exit{Code: 126, Error: "the environment's session-run " + err.Error(), Fresh: true})
		}
	}
	answer, err := in.execute(r.Argv[1], r.Code)
	switch {
	case errors.Is(err, errEnded):
		return w.lose(s, in, wire.Exit{Fresh: fresh})
	case err != nil:
		in.said.add("the environment's session-run " + err.Error() + "; it was ended\n")
		return w.lose(s, in, wire.Exit{Code: 126, Fresh: fresh})
	}
	w.state = in
	in.used = time.Now()
	send(s, wire.TypeStdout, answer.Stdout)
	send(s, wire.TypeStderr, answer.Stderr)
	return wire.Exit{Code: exitCode(*answer.ExitCode), Fresh: fresh}
}

// lose ends the interpreter, and with it its state. Its own end is the exit where that has no code.
func (w *wrapped) lose(s *wire.Stream, in *interpreter, exit wire.Exit) wire.Exit {
	w.state = nil
	ended := in.drop()
	if exit.Code == 0 {
		ended.Fresh = exit.Fresh
		exit = ended
		if exit.Code == 0 {
			exit.Code = 1
			in.said.add("the environment's session-run ended without a result\n")
		}
	} else {
		w.b.log.Warn("an environment's session-run failed", "runner", w.spec.Runner, "sandbox", w.spec.ID, "exit_code", ended.Code)
	}
	exit.Lost = true
	send(s, wire.TypeStderr, in.said.String())
	return exit
}

func send(s *wire.Stream, t wire.Type, text string) {
	if text != "" {
		_ = s.Send(context.Background(), wire.Frame{Type: t, Data: []byte(text)})
	}
}

// exitCode brings a wrapper's number into range; Python writes death by a signal as a negative one.
func exitCode(n int) int {
	if n < 0 && n >= -64 {
		return 128 - n
	}
	if n < 0 || n > 255 {
		return 1
	}
	return n
}

// errEnded is the error of an interpreter that has ended by itself or was killed.
var errEnded = errors.New("ended before it was ready")

// listen takes frames from a started session-run.
func listen(p *process) *interpreter {
	in := &interpreter{p: p, frames: make(chan message), gone: make(chan struct{})}
	in.reads.Go(func() { in.said.read(p.stderr) })
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

// readMessage allocates no more than what really comes.
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

// next is the next frame that is not small talk. A nil timer waits for as long as the process lives.
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

var errTimeout = errors.New("has not answered in time")

// expect waits for a frame of that type and refuses any other.
func (in *interpreter) expect(typ string, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	m, err := in.next(timer.C)
	switch {
	case errors.Is(err, errTimeout):
		return fmt.Errorf("did not say %q within %v", typ, limit)
	case err == nil && m.Type != typ:
		return fmt.Errorf("broke the protocol: %.32q where %q was due", m.Type, typ)
	}
	return err
}

func (in *interpreter) execute(language string, code []byte) (message, error) {
	id := rand.Text() // nothing that ran before can have answered to it
	if err := in.send(message{Type: "execute", ID: id, Interpreter: language, Code: string(code)}); err != nil {
		return message{}, err
	}
	m, err := in.next(nil)
	if err == nil && (m.Type != "result" || m.ID != id || m.ExitCode == nil) {
		err = fmt.Errorf("broke the protocol: %.32q where the result was due", m.Type)
	}
	return m, err
}

// alive says whether the interpreter can take another cell. One that has been idle for long is asked.
func (in *interpreter) alive(idle, limit time.Duration) bool {
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

// shutdown asks the interpreter to leave, for a moment.
func (in *interpreter) shutdown() {
	_ = in.p.stdin.SetWriteDeadline(time.Now().Add(leaveGrace))
	if in.send(message{Type: "shutdown"}) == nil {
		select {
		case <-in.p.done:
		case <-time.After(leaveGrace):
		}
	}
	in.drop()
}

// drop ends the interpreter and says how it ended.
func (in *interpreter) drop() wire.Exit {
	in.p.kill()
	<-in.p.done
	close(in.gone)
	in.reads.Wait()
	in.p.close()
	return in.p.exit()
}

// tail keeps the last of what a program prints to stderr besides its protocol.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const maxSaid = 4 << 10

func (t *tail) read(r io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		t.add(string(buf[:n]))
		if err != nil {
			return
		}
	}
}

func (t *tail) add(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, text...)
	t.b = t.b[max(0, len(t.b)-maxSaid):]
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := strings.TrimSpace(string(t.b)); s != "" {
		return s + "\n"
	}
	return ""
}
