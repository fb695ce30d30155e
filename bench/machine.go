//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// machine describes the machine and the programs of the measurement.
func (b *bench) machine(ctx context.Context) []string {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	say("%s, %s", time.Now().UTC().Format(time.DateOnly), firstLine(ctx, b.binary, "version"))
	var info syscall.Sysinfo_t
	_ = syscall.Sysinfo(&info) // cannot fail with a valid address
	say("%d CPUs (%s), %.0f GB of memory", runtime.NumCPU(), field("/proc/cpuinfo", "model name", ":"), float64(uint64(info.Totalram)*uint64(info.Unit))/1e9)
	say("%s, Linux %s, load average when this was written: %s", strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`),
		firstLine(ctx, "uname", "-r"), load())
	say("%s, Node.js %s, %s", firstLine(ctx, b.program("python"), "--version"), firstLine(ctx, b.program("node"), "--version"), firstLine(ctx, "bwrap", "--version"))
	for _, k := range b.shared {
		if k.name == ordinaryKind {
			say("%s runs in %s", titles[k.name], k.server.outerNamespace())
		}
	}
	if d := b.dockerSide; d != nil {
		out, err := d.docker("version", "--format", "Docker {{.Server.Version}}, its command {{.Client.Version}}")(ctx)
		if err == nil {
			say("%s", bytes.TrimSpace(out))
		}
	}
	return lines
}

func firstLine(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return name + ": not known"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// field returns the value of the first line of a file that begins with key.
func field(path, key, separator string) string {
	f, err := os.Open(path)
	if err != nil {
		return "not known"
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if k, v, ok := strings.Cut(sc.Text(), separator); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return "not known"
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "not known"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
