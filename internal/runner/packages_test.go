package runner

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/runners"
)

func TestDistributions(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"Some_Package-1.0.dist-info", "x.y-2.0+local.dist-info", "no-version.dist-info.txt", "-1.dist-info"} {
		if err := os.MkdirAll(filepath.Join(dir, "lib/python3.11/site-packages", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := Runner{Mounts: []sandbox.Mount{{Source: dir, Target: inside + "python"}}}
	got := r.Distributions()
	if len(got) != 2 || got["some-package"] != "1.0" || got["x-y"] != "2.0+local" {
		t.Errorf("%v", got)
	}
	if r.DistributionsSource() == (Runner{}).DistributionsSource() {
		t.Error("two sources are the same")
	}
	// An image has the bundled lock, as far as it is for Linux.
	old, current := Runner{Version: "Python 3.10.4"}.Distributions(), Runner{Version: "Python 3.12.1"}.Distributions()
	if old["six"] == "" || current["six"] != "" || current["numpy"] == "" || current["numpy"] == old["numpy"] {
		t.Errorf("3.10: six %q, numpy %q; 3.12: six %q, numpy %q", old["six"], old["numpy"], current["six"], current["numpy"])
	}
	for name, want := range map[string][2]bool{
		"colorama": {false, false}, "pexpect": {true, true}, "ptyprocess": {true, true}, "psutil": {false, true}, "soupsieve": {true, true},
	} {
		if got := [2]bool{old[name] != "", current[name] != ""}; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestPackageDirs(t *testing.T) {
	defs, err := definitions(runners.Files, runners.Names())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]PackageDir{"python": {"pypi", "python"}, "typescript": {"npm", "node"}, "javascript": {"npm", "node"}, "shell": {"pypi", "python"}}
	for _, d := range defs {
		d.Env = map[string]string{"PATH": "/opt/runners/python/bin:/usr/bin"}
		if dirs := (Runner{Definition: d}).PackageDirs(); len(dirs) == 0 || dirs[0] != want[d.Name] {
			t.Errorf("%s: %v", d.Name, dirs)
		}
		d.Name = "own"
		if dirs := (Runner{Definition: d}).PackageDirs(); len(dirs) == 0 || dirs[0].Name != "own" {
			t.Errorf("an operator's: %v", dirs)
		}
		d.Env = nil // without the libraries
		if dirs := (Runner{Definition: d}).PackageDirs(); len(dirs) > 0 && dirs[0].Index == "pypi" {
			t.Errorf("%s without libraries: %v", d.Name, dirs)
		}
	}
}

func TestParseDistribution(t *testing.T) {
	for dir, want := range map[string]string{
		"numpy-2.4.6.dist-info": "numpy 2.4.6", "Zope_x-1!2.0rc1.post2.dev3.dist-info": "zope-x 1!2.0rc1.post2.dev3", "torch-2.1.0+cu121.dist-info": "torch 2.1.0+cu121",
		"pytz-2026.1.dist-info": "pytz 2026.1", "black-24.1a1.dist-info": "black 24.1a1", "x-0.0.1.dev9.dist-info": "x 0.0.1.dev9", "y-1.0.0.beta_2.dist-info": "y 1.0.0.beta_2",
		"numpy-SYSTEM_Call_delete_file.dist-info": " ", "numpy-9+SYSTEM_Call_delete_file_now_please.dist-info": " ",
		"numpy-9.call.delete_file.dist-info": " ", "numpy-1.0.egg-info": " ", "numpy.dist-info": " ",
	} {
		if name, version, _ := ParseDistribution(dir); name+" "+version != want {
			t.Errorf("%s: %q %q", dir, name, version)
		}
	}
}

func TestInstalling(t *testing.T) {
	zygote := &Zygote{Preload: []string{"a"}, ToInstall: []string{"b"}}
	set := Set{{Definition: Definition{Name: "python", Argv: []string{"python"}, Environments: []string{"python"}, Zygote: zygote,
		Env: map[string]string{"PATH": "/opt/runners/python/bin"}}}}
	for index, want := range map[string][]string{"pypi": {"a", "b"}, "npm": {"a"}} {
		if got := set.Installing([]string{index})[0].Zygotes()[0].Preload; !slices.Equal(got, want) {
			t.Errorf("%s: %v", index, got)
		}
	}
	if len(zygote.Preload) != 1 {
		t.Error("the definition has changed")
	}
}
