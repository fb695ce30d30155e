//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWindow talks to a script that answers as a stdio server does.
func TestWindow(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		want   string // of the cell
		fails  []string
	}{
		"answers": {`
read -r initialize && echo '{"jsonrpc":"2.0","id":1,"result":{}}'
read -r initialized
read -r cell && echo '{"jsonrpc":"2.0","method":"notifications/message"}' && echo '{"jsonrpc":"2.0","id":2,"result":"42"}'
read -r end || exit 0`, `"result":"42"`, nil},
		"ends at once":      {"echo 'no bubblewrap' >&2; exit 1", "", []string{"the stdio server did not answer initialize: ", "\nno bubblewrap"}},
		"ends before cells": {`read -r initialize && echo '{"jsonrpc":"2.0","id":1,"result":{}}'; read -r initialized; read -r cell; echo crashed >&2`, "", []string{"did not answer tools/call: ", "\ncrashed"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b := &bench{binary: filepath.Join(dir, "server")}
			if err := os.WriteFile(b.binary, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			w, err := b.openWindow(t.Context(), kind{name: rootKind}, filepath.Join(dir, "data"))
			var answer []byte
			if err == nil {
				answer, err = w.cell(t.Context(), "s", "print(42)")
				if end := w.close(); end != nil {
					t.Errorf("close: %v", end)
				}
			}
			if test.fails == nil && (err != nil || !strings.Contains(string(answer), test.want)) {
				t.Errorf("cell = %s, %v", answer, err)
			}
			for _, want := range test.fails {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %s", err, want)
				}
			}
		})
	}
}

// TestEndServersOn checks that only what uses the directory ends.
func TestEndServersOn(t *testing.T) {
	dir := t.TempDir()
	start := func(root string) *exec.Cmd {
		cmd := exec.Command("/bin/sh", "-c", "echo ready; read x")
		cmd.Env = []string{"SANDBOX_ROOT=" + root}
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		if _, err := out.Read(make([]byte, 10)); err != nil { // it has its own environment now
			t.Fatal(err)
		}
		return cmd
	}
	ours, below, other := start(dir), start(dir+"/data"), start(dir+"-other")
	endServersOn(dir)
	for _, cmd := range []*exec.Cmd{ours, below} {
		if err := cmd.Wait(); err == nil || err.Error() != "signal: terminated" {
			t.Errorf("a server on the directory: %v", err)
		}
	}
	if got := serversOn(dir + "-other"); len(got) != 1 || got[0] != other.Process.Pid {
		t.Errorf("servers on another directory: %v, want %d", got, other.Process.Pid)
	}
}
