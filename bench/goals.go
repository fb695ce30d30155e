//go:build linux

package main

import (
	"fmt"
	"strings"
	"time"
)

// goal is a statement that the numbers of the jail must prove.
type goal struct {
	what   string
	target string
	// measured describes the measurement and reports whether it meets the goal. ok is false if a
	// number is missing.
	measured func(values) (text string, met, ok bool)
}

// values maps names to the numbers of all sections.
type values map[string]float64

// below requires one number to be at most a multiple of another.
func below(name, yardstick string, most float64) func(values) (string, bool, bool) {
	return func(v values) (string, bool, bool) {
		a, b := v[name], v[yardstick]
		if a == 0 || b == 0 {
			return "", false, false
		}
		return fmt.Sprintf("%s (%s to %s)", times(a/b), msOf(a), msOf(b)), a <= most*b, true
	}
}

// atMost requires a number to be at most a limit.
func atMost(name string, limit float64, show func(float64) string) func(values) (string, bool, bool) {
	return func(v values) (string, bool, bool) {
		a, ok := v[name]
		return show(a), a <= limit, ok
	}
}

func msOf(v float64) string { return ms(time.Duration(v * 1e6)) }
func mb(v float64) string   { return fmt.Sprintf("%.1f MB", v/1e6) }

var goals = []goal{
	{"warm pandas beside `docker run` of the same code", "≤ 1/40", below("pandas warm jail", "pandas docker run", 1.0/40)},
	{"warm pandas beside `docker exec` of the same code", "≤ 1/10", below("pandas warm jail", "pandas docker exec", 1.0/10)},
	{"warm trivial beside plain `python3 -c`", "≤ 1/2", below("python warm jail", "python plain", 1.0/2)},
	{"new session with pandas", "≤ 25 ms, or ≤ 1/20 of `docker run`", func(v values) (string, bool, bool) {
		text, met, ok := below("pandas new session jail", "pandas docker run", 1.0/20)(v)
		return text, met || ok && v["pandas new session jail"] <= 25, ok
	}},
	{"TypeScript, warm, beside plain `node -e`", "≤ 1x", below("typescript warm jail", "typescript plain", 1)},
	{"a run with 1000 open sessions beside one with 1", "≤ 1.3x", atMost("sessions 1000 to 1", 1.3, times)},
	{"warm pandas", "≤ 10 ms", atMost("pandas warm jail", 10, msOf)},
	{"an idle session's own memory (PSS), of 1000", "≤ 15 MB", atMost("memory session", 15e6, mb)},
	{"of that, the agent", "≤ 4 MB", atMost("memory agent", 4e6, mb)},
	{"the server's memory (RSS) with 1000 idle sessions", "≤ 200 MB", atMost("memory server", 200e6, mb)},
	{"p99 of innocent runs beside hostile ones", "≤ 1000 ms", atMost("hostile p99", 1000, msOf)},
	{"innocent runs that failed beside hostile ones", "none", atMost("hostile failed", 0, func(n float64) string { return fmt.Sprint(n) })},
}

func goalsTable(sections []*section) string {
	all := values{}
	for _, s := range sections {
		for name, v := range s.Values {
			all[name] = v
		}
	}
	var b strings.Builder
	b.WriteString("| medians, jail, through HTTP | goal | measured | met |\n|---|---|---|---|\n")
	for _, g := range goals {
		text, met, ok := g.measured(all)
		answer := map[bool]string{true: "yes", false: "**no**"}[met]
		if !ok {
			text, answer = "not measured", ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", g.what, g.target, text, answer)
	}
	return b.String()
}
