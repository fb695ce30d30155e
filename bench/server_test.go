//go:build linux

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestWatchdog kills a process that has started a server. The server must end.
func TestWatchdog(t *testing.T) {
	const variable = "BENCH_TEST_WATCHDOG"
	if os.Getenv(variable) != "" { // the process that will be killed
		server := exec.Command("/bin/sleep", "infinity")
		server.Stdout = os.Stdout // open until it ends
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := startWatchdog(server.Process.Pid); err != nil {
			t.Fatal(err)
		}
		_ = server.Process.Release()
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		select {}
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestWatchdog$")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.Output() // returns when the last holder of its standard output has ended
	if err == nil || err.Error() != "signal: killed" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestWatchdogEndsAlone(t *testing.T) {
	server := exec.Command("/bin/sh", "-c", "read x")
	in, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	end, err := startWatchdog(server.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	end()
	_ = in.Close()
	if err := server.Wait(); err == nil || strings.Contains(err.Error(), "signal") {
		t.Errorf("the server's end: %v", err)
	}
}

func TestDescribeIDs(t *testing.T) {
	for text, want := range map[string]string{
		"         0          0 4294967295\n":                                   "no outer namespace",
		"         0      12345          1\n":                                   "an outer namespace without subordinate ids",
		"         0      12345          1\n         1     100000      65535\n": "an outer namespace with 65536 ids",
	} {
		if got := describeIDs(text); got != want {
			t.Errorf("describeIDs(%q) = %q, want %q", text, got, want)
		}
	}
}
