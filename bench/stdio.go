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
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/proc"
)

// stdio measures the first cell after initialize, as an editor's window makes it: with no other
// window, and beside another window of the same user.
func (b *bench) stdio(ctx context.Context) (*section, error) {
	kinds, err := b.kinds(ctx)
	if err != nil {
		return nil, err
	}
	var list []contender
	for _, k := range kinds {
		root, err := b.serverRoot(k, "stdio")
		if err != nil {
			return nil, err
		}
		defer endServersOn(root)
		first, err := b.openWindow(ctx, k, root)
		if err != nil {
			return nil, err
		}
		defer first.close()
		for _, w := range []work{works["python"], works["pandas"]} {
			if _, err := first.cell(ctx, "first-"+w.key, w.code); err != nil {
				return nil, err
			}
			list = append(list,
				b.firstCell(w, k, "alone", func() (string, error) { return b.serverRoot(k, b.newSession()) }),
				b.firstCell(w, k, "beside", func() (string, error) { return root, nil }))
		}
	}
	taken, err := measure(ctx, b.budget, list)
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
	var root string
	return contender{
		name: w.key + " " + name + " " + k.name, n: b.scaled(24), want: w.want, rest: 10 * pause,
		before: func(ctx context.Context) (err error) {
			if root, err = dataDir(); err == nil {
				win, err = b.openWindow(ctx, k, root)
			}
			return err
		},
		do: func(ctx context.Context) ([]byte, error) { return win.cell(ctx, b.newSession(), w.code) },
		after: func(context.Context) error {
			err := win.close()
			if name == "alone" {
				endServersOn(root)
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
	w := &window{cmd: exec.CommandContext(ctx, b.binary, "stdio"), log: root + ".log"}
	log, err := os.Create(w.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	w.cmd.Env = append(k.user.environ(), "SANDBOX_BACKEND=jail", "SANDBOX_ROOT="+root, "SANDBOX_HTTP_PORT=0", "SANDBOX_LOG_LEVEL=WARN")
	w.cmd.Stderr = log
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	w.cmd.Cancel = func() error { return w.cmd.Process.Signal(syscall.SIGTERM) }
	w.cmd.WaitDelay = windowTimeout
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
func (w *window) cell(_ context.Context, session, code string) ([]byte, error) {
	return w.ask("tools/call", map[string]any{"name": "run", "arguments": map[string]any{"session": session, "env": "python", "code": code}})
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

// endServersOn ends the servers on a data directory, or on those in it. A server that windows share
// would wait a minute for another window.
func endServersOn(dir string) {
	for _, pid := range serversOn(dir) {
		endProcess(pid)
	}
}

// endProcess ends a process that is not a child of ours, and returns when it has ended.
func endProcess(pid int) {
	p, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	_ = p.Signal(syscall.SIGTERM)
	impatient := time.AfterFunc(windowTimeout, func() { _ = p.Kill() })
	defer impatient.Stop()
	proc.AwaitExit(pid)
}

// serversOn returns the processes of this machine that were started with such a data directory,
// and whose parents were not.
func serversOn(dir string) []int {
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	found := map[int]bool{}
	for _, path := range paths {
		env, _ := os.ReadFile(path) // unreadable: another user's
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			root, ok := bytes.CutPrefix(kv, []byte("SANDBOX_ROOT="))
			if ok && strings.HasPrefix(string(root)+"/", dir+"/") {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				found[pid] = true
			}
		}
	}
	parents, _ := parentsOf()
	var top []int
	for pid := range found {
		if !found[parents[pid]] {
			top = append(top, pid)
		}
	}
	return top
}
