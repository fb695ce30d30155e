//go:build linux

package main

import (
	"strings"
	"testing"
	"time"
)

func TestGoals(t *testing.T) {
	const (
		run   = "| … beside `docker run` of the same code | ≤ 1/40 | "
		fresh = "| new session, pandas | ≤ 25 ms, or ≤ 1/20 of `docker run` | "
	)
	for name, test := range map[string]struct {
		values values
		want   string
	}{
		"met":                     {values{"pandas warm root": 10, "pandas docker run": 400}, run + "1/40 (10.0 ms to 400 ms) | yes | not measured |  |  |"},
		"missed":                  {values{"pandas warm root": 11, "pandas docker run": 400}, run + "1/36.4 (11.0 ms to 400 ms) | **no** |"},
		"missed by the other":     {values{"pandas warm ordinary": 11, "pandas docker run": 400}, run + "not measured |  | 1/36.4 (11.0 ms to 400 ms) | **no** |  |"},
		"without an engine":       {values{"pandas warm root": 11}, run + "not measured |  |"},
		"the one or":              {values{"pandas new session root": 25, "pandas docker run": 100}, fresh + "1/4 (25.0 ms to 100 ms) | yes |"},
		"the other":               {values{"pandas new session root": 50, "pandas docker run": 1000}, fresh + "1/20 (50.0 ms to 1000 ms) | yes |"},
		"neither":                 {values{"pandas new session root": 51, "pandas docker run": 1000}, fresh + "1/19.6 (51.0 ms to 1000 ms) | **no** |"},
		"the one without engine":  {values{"pandas new session root": 25}, fresh + "25.0 ms | yes |"},
		"a number that is there":  {values{"memory server root": 201e6}, "| 201.0 MB | **no** |"},
		"side by side":            {values{"plot warm root": 40, "plot warm ordinary": 50}, "| ≤ 45 ms | 40.0 ms | yes | 50.0 ms | **no** | 1.25x |"},
		"slower than root's":      {values{"plot warm root": 40, "plot warm ordinary": 51}, "| 51.0 ms | **no** | **1.27x** |"},
		"only compared":           {values{"pandas new notebook root": 20, "pandas new notebook ordinary": 400}, "|  | 20.0 ms |  | 400 ms |  | **20.0x** |"},
		"a rate of the same":      {values{"throughput 16 root": 100, "throughput 16 ordinary": 80, "throughput 16 plain": 90}, "| 1.11x (100 to 90) | yes | 0.89x (80 to 90) | **no** | 0.80x |"},
		"a rate below root's":     {values{"throughput 16 root": 100, "throughput 16 ordinary": 79, "throughput 16 plain": 70}, "| 1.13x (79 to 70) | yes | **0.79x** |"},
		"a yardstick of the kind": {values{"back to back burst ordinary": 13, "back to back paced ordinary": 10, "back to back paced root": 1}, "| 1.30x (13.0 ms to 10.0 ms) | yes |  |"},
		"a floor":                 {values{"sessions opened root": 59, "sessions bare root": 85.4}, "| ≥ 60 | 59 (bare bwrap: 85.4) | **no** |"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := goalsTable(valuesOf([]*section{{Values: test.values}})); !strings.Contains(got, test.want) {
				t.Errorf("%s is not in\n%s", test.want, got)
			}
		})
	}
}

// TestRender checks that sections with the same header share a table, and that a common note
// appears once.
func TestRender(t *testing.T) {
	header := []string{"what", "p50"}
	got := render([]string{"a machine"}, []*section{
		{Title: "one", Header: header, Rows: [][]string{{"a", "1 ms"}}, Notes: []string{"no engine"}},
		{Title: "two", Header: header, Rows: [][]string{{"b"}}, Notes: []string{"no engine"}},
		{Title: "none", Header: []string{"nothing"}, Notes: []string{"it was left out"}},
		{Title: "three", Header: []string{"other", "p50"}, Rows: [][]string{{"c", "3 ms"}}},
	})
	for _, want := range []string{
		"- a machine\n",
		"| what | p50 |\n|---|---|\n| **one** | |\n| a | 1 ms |\n| **two** | |\n| b | |\n\n| other | p50 |\n|---|---|\n| **three** | |\n| c | 3 ms |\n",
		"- it was left out\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "nothing") {
		t.Errorf("a section without rows has a table:\n%s", got)
	}
	if n := strings.Count(got, "no engine"); n != 1 {
		t.Errorf("the note is there %d times", n)
	}
}

// TestShelf checks that a run resumes with measurements of the same build only.
func TestShelf(t *testing.T) {
	s := shelf{t.TempDir() + "/parts"}
	if err := s.put("pandas", &section{Title: "pandas", Build: "a", Values: values{"x": 1}}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		part, build string
		want        bool
	}{{"pandas", "a", true}, {"pandas", "b", false}, {"plot", "a", false}} {
		got, err := s.get(test.part, test.build)
		if err != nil || (got != nil) != test.want || got != nil && got.Values["x"] != 1 {
			t.Errorf("get(%s, %s) = %+v, %v", test.part, test.build, got, err)
		}
	}
	if err := s.clear(); err != nil {
		t.Fatal(err)
	}
	if got, err := s.get("pandas", "a"); got != nil || err != nil {
		t.Errorf("after clear: %+v, %v", got, err)
	}
}

func TestPercentile(t *testing.T) {
	var d []time.Duration
	for i := range 200 {
		d = append(d, time.Duration(200-i))
	}
	if p50, p99 := percentile(d, 50), percentile(d, 99); p50 != 101 || p99 != 199 {
		t.Errorf("p50 %d, p99 %d", p50, p99)
	}
}
