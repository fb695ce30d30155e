//go:build linux

package main

import (
	"os"
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
			b := &bench{binary: filepath.Join(dir, "server"), windows: map[string]kind{}}
			if err := os.WriteFile(b.binary, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			w, err := b.openWindow(t.Context(), kind{name: rootKind}, filepath.Join(dir, "data"))
			var answer []byte
			if err == nil {
				answer, err = w.cell("s", "print(42)")
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

// TestEndShared checks that the end of a shared server is requested with the settings of its
// windows, and that a failure is explained.
func TestEndShared(t *testing.T) {
	dir := t.TempDir()
	b := &bench{binary: filepath.Join(dir, "server"), windows: map[string]kind{dir: {}}}
	script := `[ "$*" = "stdio --stop" ] && [ "$SANDBOX_ROOT" = "` + dir + `" ] || { echo "called with $*" >&2; exit 1; }`
	if err := os.WriteFile(b.binary, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := b.endShared(kind{}, dir); err != nil || len(b.windows) != 0 {
		t.Errorf("endShared: %v; left are %v", err, b.windows)
	}
	if err := b.endShared(kind{}, "/other"); err == nil || !strings.Contains(err.Error(), "exit status 1: called with stdio --stop") {
		t.Errorf("a failure: %v", err)
	}
}
