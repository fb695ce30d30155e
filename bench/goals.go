//go:build linux

package main

import (
	"fmt"
	"strings"
	"time"
)

// goal is a statement that the numbers of a kind of server must prove. Names of values are without
// the kind, except for yardsticks that no server has part in.
type goal struct {
	what   string
	target string // empty: only the comparison of the kinds counts
	value  string // of which the kinds of servers are compared; empty: they are not
	more   bool   // a larger value is better
	judge  judgement
	figure bool // on a page for readers
}

// judgement describes a measurement and reports whether it meets the goal. ok is false if a number
// is missing.
type judgement func(v values, kind string) (text string, met, ok bool)

// values maps names to the numbers of all sections.
type values map[string]float64

// sameSpeed is how many times slower than root's server an ordinary user's may be.
const sameSpeed = 1.25

var goals = []goal{
	{what: "warm trivial Python", target: "≤ 1/2 of plain `python3 -c`", value: "python warm", judge: below("python warm", "python plain", 1.0/2)},
	{what: "new session, trivial Python", value: "python new session", judge: shown("python new session", msOf)},
	{what: "warm pandas", target: "≤ 10 ms", value: "pandas warm", judge: atMost("pandas warm", 10, msOf)},
	{what: "… beside `docker run` of the same code", target: "≤ 1/40", judge: below("pandas warm", "pandas docker run", 1.0/40)},
	{what: "… beside `docker exec` of the same code", target: "≤ 1/10", judge: below("pandas warm", "pandas docker exec", 1.0/10)},
	{what: "new session, pandas", target: "≤ 25 ms, or ≤ 1/20 of `docker run`", value: "pandas new session",
		judge: either(atMost("pandas new session", 25, msOf), below("pandas new session", "pandas docker run", 1.0/20))},
	{what: "new notebook, pandas", value: "pandas new notebook", judge: shown("pandas new notebook", msOf), figure: true},
	{what: "a plot to a PNG file, warm", target: "≤ 45 ms", value: "plot warm", judge: atMost("plot warm", 45, msOf), figure: true},
	{what: "TypeScript, warm", target: "≤ 10 ms", value: "typescript warm", judge: atMost("typescript warm", 10, msOf)},
	{what: "… beside plain `node -e`", target: "≤ 1x", judge: below("typescript warm", "typescript plain", 1)},
	{what: "TypeScript, first of a session", target: "≤ 50 ms", value: "typescript new session", judge: atMost("typescript new session", 50, msOf)},
	{what: "stdio, first cell, no other window", value: "stdio python alone", judge: shown("stdio python alone", msOf), figure: true},
	{what: "stdio, first cell, another window open", target: "≤ 30 ms", value: "stdio python beside", judge: atMost("stdio python beside", 30, msOf), figure: true},
	{what: "stdio, first pandas cell, another window open", target: "≤ 30 ms", value: "stdio pandas beside",
		judge: atMost("stdio pandas beside", 30, msOf), figure: true},
	{what: "a run back to back, to one after a pause", target: "≤ 1.3x", value: "back to back burst",
		judge: below("back to back burst", "back to back paced", 1.3), figure: true},
	{what: "a run back to back, to a plain process", target: "≤ 1x", judge: below("back to back burst", "back to back plain", 1), figure: true},
	{what: "runs a second, 16 clients, to plain processes", target: "≥ 1x, better 1.5x", value: "throughput 16", more: true,
		judge: atLeast("throughput 16", "throughput 16 plain", 1), figure: true},
	{what: "a run with 1000 open sessions, to one with 1", target: "≤ 1.3x", judge: atMost("sessions 1000 to 1", 1.3, times), figure: true},
	{what: "p99 with 1000 open sessions, to p50", target: "≤ 5x", value: "sessions p99", judge: below("sessions p99", "sessions p50", 5), figure: true},
	{what: "sessions opened a second, towards 1000", target: "≥ 60", value: "sessions opened", more: true, judge: opened, figure: true},
	{what: "threads per idle session", target: "≤ 10", value: "sessions threads", judge: atMost("sessions threads", 10, count), figure: true},
	{what: "an idle session's own memory (PSS), of 1000", target: "≤ 15 MB", value: "memory session", judge: atMost("memory session", 15e6, mb), figure: true},
	{what: "… of that, the agent", target: "≤ 4 MB", value: "memory agent", judge: atMost("memory agent", 4e6, mb)},
	{what: "a pandas session's own memory", target: "≤ 15 MB", value: "memory pandas session", judge: atMost("memory pandas session", 15e6, mb), figure: true},
	{what: "a pandas notebook's own memory", value: "memory pandas notebook", judge: shown("memory pandas notebook", mb), figure: true},
	{what: "the server's memory (RSS) with 1000 idle sessions", target: "≤ 200 MB", value: "memory server",
		judge: atMost("memory server", 200e6, mb), figure: true},
	{what: "a new connection to a named host, added by http", target: "≤ 1 ms", judge: atMost("http connection added", 1, msOf)},
	{what: "… by https", target: "≤ 1 ms", judge: atMost("https connection added", 1, msOf)},
	{what: "100 MB from a named host by http, to direct", target: "≥ 60 %", judge: reaching("http to a named host, from a sandbox", 0.6)},
	{what: "… by https", target: "≥ 60 %", judge: reaching("https to a named host, from a sandbox", 0.6)},
	{what: "a wheel with a dependency, first installed in a session, to pip on the host", target: "≤ 1.1x", judge: atMost("packages a session, nothing cached", 1.1, times)},
	{what: "… in a second session", target: "≤ 0.5x", judge: atMost("packages another session", 0.5, times)},
	{what: "p99 of innocent runs beside hostile ones", target: "≤ 1000 ms", judge: atMost("hostile p99", 1000, msOf)},
	{what: "innocent runs that failed beside hostile ones", target: "none", judge: atMost("hostile failed", 0, count)},
}

// shown only shows a number.
func shown(name string, show func(float64) string) judgement {
	return func(v values, kind string) (string, bool, bool) {
		a, ok := v[name+" "+kind]
		return show(a), true, ok
	}
}

// atMost requires a number to be at most a limit.
func atMost(name string, limit float64, show func(float64) string) judgement {
	return func(v values, kind string) (string, bool, bool) {
		a, ok := v[name+" "+kind]
		return show(a), a <= limit, ok
	}
}

// reaching requires a part of something to be at least a limit.
func reaching(name string, limit float64) judgement {
	return func(v values, kind string) (string, bool, bool) {
		a, ok := v[name+" "+kind]
		return percent(a), a >= limit, ok
	}
}

// below requires one number to be at most a multiple of another, the kind's own or everybody's.
func below(name, yardstick string, most float64) judgement {
	return func(v values, kind string) (string, bool, bool) {
		a, b := v[name+" "+kind], v.yardstick(yardstick, kind)
		if a == 0 || b == 0 {
			return "", false, false
		}
		return fmt.Sprintf("%s (%s to %s)", times(a/b), msOf(a), msOf(b)), a <= most*b, true
	}
}

// atLeast requires one rate to be at least a multiple of another.
func atLeast(name, yardstick string, least float64) judgement {
	return func(v values, kind string) (string, bool, bool) {
		a, b := v[name+" "+kind], v.yardstick(yardstick, kind)
		if a == 0 || b == 0 {
			return "", false, false
		}
		return fmt.Sprintf("%s (%s to %s)", times(a/b), count(a), count(b)), a >= least*b, true
	}
}

// either requires one of two judgements.
func either(one, other judgement) judgement {
	return func(v values, kind string) (string, bool, bool) {
		text, met, ok := one(v, kind)
		if more, alsoMet, alsoOK := other(v, kind); alsoOK {
			return more, met || alsoMet, ok
		}
		return text, met, ok
	}
}

// opened requires 60 new sessions per second, and shows what this machine permits beside it.
func opened(v values, kind string) (string, bool, bool) {
	rate, ok := v["sessions opened "+kind]
	return fmt.Sprintf("%s (bare bwrap: %s)", count(rate), count(v["sessions bare "+kind])), rate >= 60, ok
}

// yardstick returns the kind's value of a name, or else the value of the name alone.
func (v values) yardstick(name, kind string) float64 {
	if own, ok := v[name+" "+kind]; ok {
		return own
	}
	return v[name]
}

func msOf(v float64) string    { return ms(time.Duration(v * 1e6)) }
func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
func mb(v float64) string      { return fmt.Sprintf("%.1f MB", v/1e6) }
func count(v float64) string   { return strings.TrimSuffix(short(v, 1), ".0") }

// valuesOf returns the numbers of all sections.
func valuesOf(sections []*section) values {
	all := values{}
	for _, s := range sections {
		for name, v := range s.Values {
			all[name] = v
		}
	}
	return all
}

// goalsTable shows root's and the ordinary user's server side by side.
func goalsTable(all values) string {
	var b strings.Builder
	header := []string{"medians on the jail", "goal", titles[rootKind], "met", titles[ordinaryKind], "met", fmt.Sprintf("ordinary to root, goal ≤ %v", times(sameSpeed))}
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat("---|", len(header)))
	for _, g := range goals {
		row := []string{g.what, g.target}
		for _, kind := range []string{rootKind, ordinaryKind} {
			row = append(row, g.cells(all, kind)...)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(append(row, g.toRoot(all)), " | "))
	}
	return b.String()
}

// cells returns what was measured of a kind of server, and whether it meets the goal.
func (g goal) cells(all values, kind string) []string {
	text, met, ok := g.judge(all, kind)
	switch {
	case !ok:
		return []string{"not measured", ""}
	case g.target == "":
		return []string{text, ""}
	}
	return []string{text, map[bool]string{true: "yes", false: "**no**"}[met]}
}

// toRoot returns the ratio of the ordinary user's value to root's, marked if the server is slower
// than it should be.
func (g goal) toRoot(all values) string {
	root, ordinary := all[g.value+" "+rootKind], all[g.value+" "+ordinaryKind]
	if g.value == "" || root == 0 || ordinary == 0 {
		return ""
	}
	ratio := ordinary / root
	text := times(ratio)
	if g.more {
		ratio = 1 / ratio
	}
	if ratio > sameSpeed {
		return "**" + text + "**"
	}
	return text
}
