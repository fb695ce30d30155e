package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"mcp-code-sandbox/internal/control"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/session"
)

type sessionsCmd struct {
	List sessionsListCmd `cmd:"" help:"List the sessions of all callers."`
	Stop sessionsStopCmd `cmd:"" help:"End the runs and sandboxes of a session. Its files stay."`
}

type sessionsListCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
	Live bool `help:"Only those that have a sandbox."`
}

type sessionsStopCmd struct {
	Session string `arg:"" help:"The session's key, or the start of it, as list shows it; or CALLER/SESSION."`
}

// shortKey is how much of a key the table shows.
const shortKey = 12

// listedSession is a session, and the servers that use it: several may share the root.
type listedSession struct {
	session.Info
	State   string   `json:"state"` // running, live (it has a sandbox) or idle
	Servers []string `json:"servers,omitempty"`
}

// Run prints the sessions: those with a sandbox first, then the last used first.
func (c *sessionsListCmd) Run(ctx context.Context, inv *invocation) error {
	if _, err := os.Stat(inv.settings.Root); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the data directory %s does not exist; set SANDBOX_ROOT or --root", inv.settings.Root)
	}
	list, _, err := listSessions(ctx, inv)
	if err != nil {
		return err
	}
	if c.Live {
		list = slices.DeleteFunc(list, func(s listedSession) bool { return s.Sandboxes == 0 })
	}
	if c.JSON {
		text, err := json.MarshalIndent(list, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(inv.stdout, escapeJSON(string(text)))
		return err
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(inv.stdout, "No sessions on "+inv.settings.Root+".")
		return err
	}
	t := tabwriter.NewWriter(inv.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tCALLER\tSESSION\tSTATE\tRUNS\tSANDBOXES\tINTERPRETERS\tSIZE\tLAST USED")
	for _, s := range list {
		size := "-"
		if s.Bytes != nil {
			size = megabytes(*s.Bytes)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", s.Key[:shortKey], printable(s.Caller), printable(s.ID), s.State,
			s.Runs, s.Sandboxes, cmp.Or(printable(strings.Join(s.Interpreters, ",")), "-"), size, s.LastUsed.Format(time.RFC3339))
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "CALLER\tSESSIONS\tSIZE")
	for _, total := range totals(list) {
		fmt.Fprintf(t, "%s\t%d\t%s\n", printable(total.caller), total.sessions, megabytes(total.bytes))
	}
	return t.Flush()
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// callerTotal counts a caller's sessions and the bytes that have been measured.
type callerTotal struct {
	caller   string
	sessions int
	bytes    int64
}

// totals returns the totals of all callers, the largest first.
func totals(list []listedSession) []callerTotal {
	byCaller := map[string]callerTotal{}
	for _, s := range list {
		total := byCaller[s.Caller]
		total.caller = s.Caller
		total.sessions++
		if s.Bytes != nil {
			total.bytes += *s.Bytes
		}
		byCaller[s.Caller] = total
	}
	return slices.SortedFunc(maps.Values(byCaller), func(a, b callerTotal) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.caller, b.caller))
	})
}

// Run asks every server that uses the session to end its sandboxes.
func (c *sessionsStopCmd) Run(ctx context.Context, inv *invocation) error {
	list, servers, err := listSessions(ctx, inv)
	if err != nil {
		return err
	}
	if len(servers) == 0 {
		return fmt.Errorf("no server is running on %s, so nothing can be stopped (SANDBOX_ROOT, or --root, names the data directory)", inv.settings.Root)
	}
	s, err := findSession(list, c.Session)
	if err != nil {
		inv.code = exitUsage
		return err
	}
	var total session.Stopped
	var errs []error
	for _, id := range s.Servers {
		stopped, err := control.Stop(ctx, instance.Dir(inv.settings.Root, id), s.Key)
		gone := errors.Is(err, session.ErrNotFound) || errors.Is(err, control.ErrNotRunning)
		if err != nil && !gone {
			errs = append(errs, fmt.Errorf("server %s: %w", id, err))
		}
		total.Runs += stopped.Runs
		total.Sandboxes += stopped.Sandboxes
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if total.Sandboxes == 0 {
		_, err = fmt.Fprintf(inv.stdout, "Session %s of %s has nothing running.\n", printable(s.ID), printable(s.Caller))
		return err
	}
	_, err = fmt.Fprintf(inv.stdout, "Session %s of %s: ended %s and %s. Its files are kept.\n", printable(s.ID), printable(s.Caller),
		counted(total.Runs, "run", "runs"), counted(total.Sandboxes, "sandbox", "sandboxes"))
	return err
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// findSession returns the session with that key, prefix of a key, or CALLER/SESSION. A session's id
// has no slash.
func findSession(list []listedSession, name string) (listedSession, error) {
	at := strings.LastIndexByte(name, '/')
	found := slices.DeleteFunc(slices.Clone(list), func(s listedSession) bool {
		if at >= 0 {
			return s.Caller != name[:at] || s.ID != name[at+1:]
		}
		return name == "" || !strings.HasPrefix(s.Key, name)
	})
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return listedSession{}, fmt.Errorf("session %s not found; give a KEY that mcp-code-sandbox sessions list shows, or CALLER/SESSION", printable(name))
	}
	return listedSession{}, fmt.Errorf("%d keys start with %s; give more of the key", len(found), printable(name))
}

// listSessions asks all servers on the root, and adds the sessions on disk that none of them has.
// It returns the servers that answered.
func listSessions(ctx context.Context, inv *invocation) (list []listedSession, servers []string, err error) {
	root := inv.settings.Root
	byKey := map[string]*listedSession{}
	ids, err := instance.List(root)
	if err != nil {
		return nil, nil, explainDenied(err)
	}
	for _, id := range ids {
		infos, err := control.Infos(ctx, instance.Dir(root, id))
		if errors.Is(err, control.ErrNotRunning) {
			if errors.Is(err, os.ErrPermission) {
				return nil, nil, fmt.Errorf("the servers on %s belong to another user: run this command as that user (%w)", root, err)
			}
			continue
		}
		if err != nil {
			fmt.Fprintf(inv.stderr, "mcp-code-sandbox: server %s does not answer: %v\n", id, err)
			continue
		}
		servers = append(servers, id)
		for _, info := range infos {
			if len(info.Key) >= shortKey { // another version may answer differently
				add(byKey, info, id)
			}
		}
	}
	stored, err := session.Stored(root)
	if err != nil {
		return nil, nil, fmt.Errorf("%s cannot be read: %w (%s)", root, err, fixRoot)
	}
	for _, info := range stored {
		if s := byKey[info.Key]; s == nil {
			add(byKey, info, "")
		} else {
			s.Bytes = cmp.Or(s.Bytes, info.Bytes)
		}
	}
	list = make([]listedSession, 0, len(byKey))
	for _, s := range byKey {
		switch {
		case s.Runs > 0:
			s.State = "running"
		case s.Sandboxes > 0:
			s.State = "live"
		default:
			s.State = "idle"
		}
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b listedSession) int {
		return cmp.Or(-cmp.Compare(min(a.Sandboxes, 1), min(b.Sandboxes, 1)), b.LastUsed.Compare(a.LastUsed), cmp.Compare(a.Key, b.Key))
	})
	return list, servers, nil
}

// add merges what one server reports about a session.
func add(byKey map[string]*listedSession, info session.Info, server string) {
	s := byKey[info.Key]
	if s == nil {
		s = &listedSession{Info: info}
		byKey[info.Key] = s
	} else {
		s.Runs += info.Runs
		s.Sandboxes += info.Sandboxes
		s.Interpreters = append(s.Interpreters, info.Interpreters...)
		s.Bytes = cmp.Or(s.Bytes, info.Bytes)
		if info.LastUsed.After(s.LastUsed) {
			s.LastUsed = info.LastUsed
		}
	}
	if server != "" {
		s.Servers = append(s.Servers, server)
	}
}

// printable escapes text that could affect a terminal or break a table.
func printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
		return s
	}
	return strconv.QuoteToASCII(s)
}

// escapeJSON escapes characters that encoding/json keeps but a terminal may interpret, such as C1
// controls and bidi overrides.
func escapeJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		if r >= 0x10000 {
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			continue
		}
		fmt.Fprintf(&b, `\u%04x`, r)
	}
	return b.String()
}
