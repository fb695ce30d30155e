package tools

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/executor"
)

// The line of facts lists what a run installed, and only then. Names cannot end the line.
func TestInstalledFacts(t *testing.T) {
	if facts := factsOf(executor.Result{}); len(facts) > 0 {
		t.Errorf("%q", facts)
	}
	res := executor.Result{Installed: []executor.Package{{Name: "shapely", Version: "2.0"}, {Name: "x]\n[y", Version: "1"}}}
	if facts := factsOf(res); !slices.Equal(facts, []string{`installed: shapely 2.0, "x]\n[y 1"`}) {
		t.Errorf("%q", facts)
	}
	res.Installed = make([]executor.Package, 100)
	if facts := factsOf(res); len(facts) != 1 || !strings.HasSuffix(facts[0], " and 80 more") {
		t.Errorf("%q", facts)
	}
}

// TestBlockedFacts: the line of facts names a few of the hosts that code could not reach.
func TestBlockedFacts(t *testing.T) {
	res := executor.Result{Blocked: []executor.Blocked{{Host: "x]\n[y", Times: 1, Rule: "none: no"}}}
	if facts := factsOf(res); !slices.Equal(facts, []string{`blocked: "x]\n[y" (rule: none: no)`}) {
		t.Errorf("%q", facts)
	}
	res.Blocked = make([]executor.Blocked, 64)
	if facts := factsOf(res); len(facts) != 1 || !strings.HasSuffix(facts[0], ", and 44 more") || len(facts[0]) > 1000 {
		t.Errorf("%q", facts)
	}
}

// TestInstalledLists: a model gets a few packages and their number, a plain caller some more.
func TestInstalledLists(t *testing.T) {
	res := executor.Result{Installed: make([]executor.Package, 300)}
	for _, tool := range []string{"run_code", "run_python"} {
		for plain, want := range map[bool]int{true: 200, false: 20} {
			res.Tool = tool
			var got installedJSON
			text := encode((&call{client: client{plain: plain}}).finishedJSON(res, nil))
			if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.Installed) != want || got.InstalledTotal != 300 {
				t.Errorf("%s, plain %t: %d of %d, %v", tool, plain, len(got.Installed), got.InstalledTotal, err)
			}
		}
	}
	if text := encode(runPythonResult(executor.Result{Installed: make([]executor.Package, 20)}, nil)); strings.Contains(text, "installed_total") {
		t.Error(text)
	}
}

func TestReplacedNotice(t *testing.T) {
	res := executor.Result{Replaced: []executor.Package{{Name: "pandas", Version: "1.5"}}}
	if got := noticeOf(res); !strings.HasPrefix(got, "This run used the session's own pandas 1.5 instead") {
		t.Error(got)
	}
	res.Outdated = true
	if got := noticeOf(res); !strings.HasSuffix(got, "the next run uses it.") {
		t.Error(got)
	}
	res.Persistent = true
	if got := noticeOf(res); !strings.Contains(got, "set restart to true") {
		t.Error(got)
	}
	res = executor.Result{Conflicts: []string{"a 1.0 requires b<2, but you have b 2.0 which is incompatible."}}
	if got := noticeOf(res); got != "Not all packages fit together: a 1.0 requires b<2, but you have b 2.0 which is incompatible." {
		t.Error(got)
	}
	if got := noticeOf(executor.Result{}); got != "" {
		t.Error(got)
	}
}
