package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// console writes lines like "2026-11-15T02:10:00.123Z INFO  [HTTP] POST /mcp status=200". The
// message is not quoted, so that grep finds the contracts' prefixes. Clients choose ids and file
// names in it, so characters that could break the line or control a terminal are escaped.
type console struct {
	mu     *sync.Mutex
	w      io.Writer
	level  slog.Level
	attrs  []byte // formatted attributes of With
	prefix string // of WithGroup, with a dot
}

var _ slog.Handler = (*console)(nil)

func newConsole(w io.Writer, level slog.Level) *console {
	return &console{mu: new(sync.Mutex), w: w, level: level}
}

func (c *console) Enabled(_ context.Context, l slog.Level) bool { return l >= c.level }

func (c *console) Handle(_ context.Context, r slog.Record) error {
	line := make([]byte, 0, 256)
	if !r.Time.IsZero() {
		line = r.Time.UTC().AppendFormat(line, "2006-01-02T15:04:05.000Z07:00")
		line = append(line, ' ')
	}
	line = fmt.Appendf(line, "%-6s", r.Level)
	line = appendEscaped(line, r.Message)
	line = append(line, c.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		line = appendAttr(line, c.prefix, a)
		return true
	})
	line = append(line, '\n')

	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.w.Write(line)
	return err
}

func (c *console) WithAttrs(attrs []slog.Attr) slog.Handler {
	d := *c
	d.attrs = slices.Clone(c.attrs)
	for _, a := range attrs {
		d.attrs = appendAttr(d.attrs, c.prefix, a)
	}
	return &d
}

func (c *console) WithGroup(name string) slog.Handler {
	if name == "" {
		return c
	}
	d := *c
	d.prefix += name + "."
	return &d
}

func appendAttr(line []byte, prefix string, a slog.Attr) []byte {
	v := a.Value.Resolve()
	if a.Equal(slog.Attr{}) {
		return line
	}
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, g := range v.Group() {
			line = appendAttr(line, prefix, g)
		}
		return line
	}
	line = append(line, ' ')
	line = appendEscaped(line, prefix+a.Key)
	line = append(line, '=')
	s := v.String()
	if v.Kind() == slog.KindTime {
		s = v.Time().UTC().Format(time.RFC3339Nano)
	}
	if needsQuotes(s) {
		return strconv.AppendQuote(line, s)
	}
	return append(line, s...)
}

func needsQuotes(s string) bool {
	return s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool {
		return r == ' ' || r == '"' || r == '=' || !unicode.IsPrint(r)
	})
}

// appendEscaped is strconv.AppendQuote without quotes. It does not escape quotes and backslashes.
func appendEscaped(line []byte, s string) []byte {
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if (r == utf8.RuneError && n == 1) || !unicode.IsPrint(r) {
			q := strconv.Quote(s[:n])
			line = append(line, q[1:len(q)-1]...)
		} else {
			line = append(line, s[:n]...)
		}
		s = s[n:]
	}
	return line
}
