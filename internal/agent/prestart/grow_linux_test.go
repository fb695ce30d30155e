package prestart

import (
	"slices"
	"testing"
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
