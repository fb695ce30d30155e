package prestart

import (
	"slices"
	"testing"

	"mcp-code-sandbox/internal/wire"
)

func TestMentioned(t *testing.T) {
	modules := []string{"seaborn", "scipy.stats"}
	for code, want := range map[string][]string{
		"":                                        nil,
		"import seaborn as sns":                   {"seaborn"},
		"import\tseaborn,scipy.stats":             {"seaborn", "scipy.stats"},
		"from scipy import optimize, stats":       {"scipy.stats"},
		"import scipy":                            nil,
		"stats = 1":                               nil,
		"seaborn_, myseaborn, 2seaborn = 1":       nil,
		"myseaborn = 1; import seaborn":           {"seaborn"},
		"äseaborn":                                nil,
		"__import__('seaborn')":                   {"seaborn"},
		"import os.system, ../seaborn/../x; \x00": {"seaborn"},
	} {
		if got := mentioned([]byte(code), modules); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", code, got, want)
		}
	}
}

// TestComplete: no process is prestarted from a zygote that is not ready, or is about to grow.
func TestComplete(t *testing.T) {
	z := &zygote{ready: make(chan struct{}), extra: map[string]bool{"scipy": true}}
	zs := zygotes{
		known:  map[string]*wire.Zygote{"python": {OnUse: []string{"seaborn", "scipy", "broken"}}},
		alive:  map[string][]*zygote{"python": {z}},
		failed: map[string]bool{"broken": true},
	}
	if zs.isComplete("python", nil) {
		t.Error("a zygote that is not ready")
	}
	close(z.ready)
	for code, want := range map[string]bool{"": true, "import scipy, broken": true, "import seaborn": false} {
		if got := zs.isComplete("python", []byte(code)); got != want {
			t.Errorf("%q: %v", code, got)
		}
	}
	if zs.isComplete("other", nil) {
		t.Error("an unknown zygote")
	}
}
