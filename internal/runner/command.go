package runner

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// command runs one step of an installation and passes each line of its output to line, unless it is
// nil. The error contains the most informative line.
func (e environ) command(ctx context.Context, dir string, env []string, line func(string), name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(e.without("PYTHON", "NODE_", "VIRTUAL_ENV", "PIP_TARGET", "PIP_USER", "PIP_PREFIX"), env...)
	log := outputLog{line: line}
	cmd.Stdout, cmd.Stderr = &log, &log
	err := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, log.summary())
	}
	return nil
}

// outputLog passes on complete lines and keeps the last ones. os/exec writes to it from one
// goroutine.
type outputLog struct {
	line    func(string)
	partial []byte
	last    []string
}

func (l *outputLog) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		advance, line, _ := bufio.ScanLines(l.partial, len(l.partial) > 4096)
		if advance == 0 {
			return len(p), nil
		}
		l.add(string(line))
		l.partial = l.partial[advance:]
	}
}

func (l *outputLog) add(line string) {
	if line = strings.TrimSpace(line); line == "" {
		return
	}
	if l.line != nil {
		l.line(line)
	}
	if l.last = append(l.last, line); len(l.last) > 20 {
		l.last = l.last[1:]
	}
}

// summary returns the first line that is marked as an error, otherwise the last line.
func (l *outputLog) summary() string {
	l.add(string(l.partial))
	for _, line := range l.last {
		for _, mark := range []string{"ERROR: ", "npm error ", "npm ERR! "} {
			_, text, ok := strings.Cut(line, mark)
			if first, _, _ := strings.Cut(text, " "); ok && first != "code" && first != "errno" && first != "syscall" {
				return text
			}
		}
	}
	if len(l.last) == 0 {
		return "no message"
	}
	return l.last[len(l.last)-1]
}
