//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// stdio measures the first cell after initialize, as an editor's window makes it: with no other
// window, and beside another window of the same user.
func (b *bench) stdio(ctx context.Context) (*section, error) {
	kinds, err := b.kinds(ctx)
	if err != nil {
		return nil, err
	}
	var lists [][]contender
	for _, k := range kinds {
		var list []contender
		root, err := b.serverRoot(k, "stdio")
		if err != nil {
			return nil, err
		}
		first, err := b.openWindow(ctx, k, root)
		if err != nil {
			return nil, err
		}
		defer first.close()
		for _, w := range []work{works["python"], works["pandas"]} {
			if _, err := first.cell("first-"+w.key, w.code); err != nil {
				return nil, err
			}
			list = append(list,
				b.firstCell(w, k, "alone", func() (string, error) { return b.serverRoot(k, b.newSession()) }),
				b.firstCell(w, k, "beside", func() (string, error) { return root, nil }))
		}
		lists = append(lists, list)
	}
	taken, err := measure(ctx, b.budget, alternate(lists))
	if err != nil {
		return nil, err
	}
	s := &section{Title: "stdio, the first cell after initialize", Header: []string{"a window", "p50", "p99", "n"},
		Notes: []string{"stdio: *alone* is the only window on a new data directory, *beside* one of two windows of the same user."}}
	for _, t := range taken {
		s.row(t.name, ms(t.p50()), ms(t.p99()), fmt.Sprint(len(t.times)))
		s.set("stdio "+t.name, t.medianMS())
	}
	return s, nil
}

// firstCell measures the first cell of a window that it opens on a data directory.
func (b *bench) firstCell(w work, k kind, name string, dataDir func() (string, error)) contender {
	var win *window
	var root, session string
	return contender{
		name: w.key + " " + name + " " + k.name, n: b.scaled(24), want: w.want, rest: 10 * pause,
		before: func(ctx context.Context) (err error) {
			if root, err = dataDir(); err == nil {
				win, err = b.openWindow(ctx, k, root)
			}
			return err
		},
		do: func(context.Context) ([]byte, error) {
			session = b.newSession()
			return win.cell(session, w.code)
		},
		after: func(context.Context) error {
			_, err := win.call("close_session", map[string]any{"session_id": session})
			if err = errors.Join(err, win.close()); err == nil && name == "alone" {
				err = b.endShared(k, root)
			}
			return err
		},
	}
}

// window is an MCP client with a stdio server of its own.
type window struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log string
	id  int
}

// windowTimeout is the longest that a window waits for an answer, or for the end of its server.
const windowTimeout = 60 * time.Second

// openWindow starts `mcp-code-sandbox stdio` and initializes it.
func (b *bench) openWindow(ctx context.Context, k kind, root string) (*window, error) {
	b.windows[root] = k
	w := &window{cmd: b.stdioCommand(ctx, k, root), log: root + ".log"}
	log, err := os.Create(w.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	w.cmd.Stderr = log
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(out)
	if err := k.user.start(w.cmd); err != nil {
		return nil, err
	}
	_, err = w.ask("initialize", map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{},
		"clientInfo": map[string]any{"name": "bench", "version": "1"}})
	if err == nil {
		err = w.send(map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"})
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// cell makes a run in a live interpreter.
func (w *window) cell(session, code string) ([]byte, error) {
	return w.call("run", map[string]any{"session": session, "env": "python", "code": code})
}

func (w *window) call(tool string, arguments map[string]any) ([]byte, error) {
	return w.ask("tools/call", map[string]any{"name": tool, "arguments": arguments})
}

// ask returns the answer to a request. Notifications before it are dropped.
func (w *window) ask(method string, params map[string]any) ([]byte, error) {
	w.id++
	if err := w.send(map[string]any{"jsonrpc": "2.0", "id": w.id, "method": method, "params": params}); err != nil {
		return nil, w.explain(method, err)
	}
	impatient := time.AfterFunc(windowTimeout, func() { _ = w.cmd.Process.Kill() })
	defer impatient.Stop()
	for {
		line, err := w.out.ReadBytes('\n')
		if err != nil {
			return nil, w.explain(method, err)
		}
		var head struct{ ID int }
		if json.Unmarshal(line, &head) == nil && head.ID == w.id {
			return line, nil
		}
	}
}

func (w *window) send(message map[string]any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = w.in.Write(append(text, '\n'))
	return err
}

func (w *window) explain(method string, err error) error {
	text, _ := os.ReadFile(w.log)
	return fmt.Errorf("the stdio server did not answer %s: %w\n%s", method, err, bytes.TrimSpace(text))
}

// close ends the window as an editor does, by closing its input.
func (w *window) close() error {
	_ = w.in.Close()
	impatient := time.AfterFunc(windowTimeout, func() { _ = w.cmd.Process.Kill() })
	defer impatient.Stop()
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("the stdio server's end: %w", err)
	}
	return nil
}

// endShared ends the server that the windows on a data directory share. It would wait a minute for
// another window.
func (b *bench) endShared(k kind, root string) error {
	ctx, cancel := context.WithTimeout(context.Background(), windowTimeout)
	defer cancel()
	cmd := b.stdioCommand(ctx, k, root, "--stop")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := k.user.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("the end of the server that windows share: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	delete(b.windows, root)
	return nil
}

// stdioCommand returns `mcp-code-sandbox stdio` on a data directory.
func (b *bench) stdioCommand(ctx context.Context, k kind, root string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.binary, append([]string{"stdio"}, args...)...)
	cmd.Env = append(k.user.environ(), "SANDBOX_BACKEND=jail", "SANDBOX_ROOT="+root, "SANDBOX_HTTP_PORT=0", "SANDBOX_LOG_LEVEL=WARN")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = windowTimeout
	return cmd
}
