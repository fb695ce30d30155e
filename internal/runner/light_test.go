package runner

import (
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/runners"
)

func TestImportsOnly(t *testing.T) {
	modules := []string{"json", "os", "urllib.request"}
	for code, want := range map[string]bool{
		"":                                   true,
		"print(2+2)":                         true,
		"import json":                        true,
		"import json, os as o, urllib.parse": true,
		"import os; import json;x=1":         true,
		"if x: import json":                  true,
		"try:\n\tfrom json import loads\nexcept E: pass":  true,
		"from urllib.request import urlopen # one":        true,
		"  # import pandas\nimport json # and no other\n": true,
		"important = reimport = 1":                        true,
		"import json\r\nimport os\r\n":                    true,
		"from json import(\nloads)":                       true,
		"import json as pandas":                           true,
		"import pandas":                                   false,
		"import jsonx":                                    false,
		"import js":                                       false,
		"import urllibx":                                  false,
		"import json, pandas":                             false,
		"import json\nimport pandas":                      false,
		"import json;import pandas":                       false,
		"import json, \\\n pandas":                        false,
		"from . import json":                              false,
		"from .json import x":                             false,
		"from pandas import json":                         false,
		"from pandas import(json)":                        false,
		"import\tpandas":                                  false,
		"import":                                          false,
		"x = __import__('pandas')":                        false,
		"exec(open('x.py').read())":                       false,
		strings.Repeat(" ", maxLook+1):                    false,
		"eval('x')":                                       false,
		"print('''\nthe import of it''')":                 false,
	} {
		if got := importsOnly(code, modules); got != want {
			t.Errorf("%q: %v, want %v", code, got, want)
		}
	}
}

func TestZygoteFor(t *testing.T) {
	defs, err := definitions(runners.Files, runners.Names())
	if err != nil {
		t.Fatal(err)
	}
	named := func(name string) Runner {
		return Runner{Definition: defs[slices.Index(runners.Names(), name)]}
	}
	python := named("python")
	for _, c := range []struct {
		code       string
		persistent bool
		want       string
	}{
		{"import json", false, "python light"}, {"import pandas", false, "python"}, {"import json", true, "python"},
	} {
		if z := python.ZygoteFor(c.code, c.persistent); z == nil || z.Name != c.want {
			t.Errorf("%+v: it comes from %+v", c, z)
		}
	}
	python.Zygote.Light = nil
	if z := python.ZygoteFor("import json", false); z == nil || z.Name != "python" {
		t.Errorf("without a light one it comes from %+v", z)
	}
	if z := named("shell").ZygoteFor("", false); z != nil {
		t.Errorf("a shell program comes from %+v", z)
	}
}

// TestZygoteEnvironment: a zygote starts with the runner's variables, except those that each run
// sets, and knows which ones it reads only at its start.
func TestZygoteEnvironment(t *testing.T) {
	r := Runner{Definition: Definition{
		Name: "python", Argv: []string{"/usr/bin/python3", "{file}"}, Env: map[string]string{"EARLY_A": "1", "EARLY_B": "2"},
		Zygote: &Zygote{Reads: []string{"EARLY_"}, PerRun: []string{"EARLY_B"}, Light: []string{"os"}},
	}}
	all := r.Zygotes()
	if len(all) != 2 {
		t.Fatalf("%d zygotes", len(all))
	}
	for _, z := range all {
		if len(z.Env) != 1 || z.Env["EARLY_A"] != "1" || len(z.Reads) != 1 || len(z.PerRun) != 1 {
			t.Errorf("%+v", z)
		}
	}
	if len(r.Env) != 2 {
		t.Errorf("the runner lost a variable: %v", r.Env)
	}
}
