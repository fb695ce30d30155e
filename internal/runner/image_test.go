package runner

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFromImages(t *testing.T) {
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	python := Image{ID: "sha256:aaaa", Tags: []string{"llm-sandbox:latest", "runner-python:latest"}, Language: "python", Agent: true, Libraries: []string{"numpy", " pandas "}, Version: "Python 3.12.7", Created: day(2)}
	node := Image{ID: "sha256:bbbb", Tags: []string{"mine:1"}, Language: "typescript", Agent: true, Created: day(2)}
	stdin := func(id, language string, d int, tags ...string) Image {
		return Image{ID: id, Tags: tags, Language: language, Created: day(d)}
	}
	chosen := stdin("sha256:cccc", "python", 1, "old:1")
	chosen.Chosen = true
	bundled := Image{ID: "sha256:dddd", Tags: []string{"runner-typescript:latest"}, Language: "typescript", Agent: true, Created: day(1)}
	evil := Image{ID: "sha256:eeee", Tags: []string{"evil:ts"}, Language: "typescript", Agent: true, Created: day(9)}
	listed := stdin("sha256:ffff", "javascript", 1, "mine:js")
	listed.Listed = true
	for _, test := range []struct {
		name     string
		images   []Image
		want     string // name=image, in order
		notes    int
		problems string
	}{
		{"none", nil, "", 0, ""},
		{"ours", []Image{node, python}, "python=runner-python typescript=mine:1 javascript=mine:1 shell=runner-python", 0, ""},
		{"TypeScript's shell", []Image{node}, "typescript=mine:1 javascript=mine:1 shell=mine:1", 0, ""},
		{"newest wins", []Image{stdin("sha256:1", "ruby", 1, "r:1"), stdin("sha256:2", "ruby", 3, "r:3"), stdin("sha256:3", "ruby", 2, "r:2")}, "ruby=r:3", 2, ""},
		{"a tag wins", []Image{stdin("sha256:1234567890abcdef", "ruby", 3), stdin("sha256:2", "ruby", 1, "r:1")}, "ruby=r:1", 0, ""},
		{"no tag at all", []Image{stdin("sha256:1234567890abcdef", "ruby", 3)}, "ruby=1234567890ab", 0, ""},
		{"chosen wins", []Image{python, chosen}, "python=old:1", 1, ""},
		{"bundled wins over newer", []Image{python, stdin("sha256:1", "python", 9, "evil:1", "runner-ruby:latest"), stdin("sha256:2", "py", 9, "evil:2")}, "python=runner-python shell=runner-python", 2, ""},
		{"bundled serves more", []Image{python, bundled, stdin("sha256:1", "javascript", 9, "evil:1"), stdin("sha256:2", "bash", 9, "evil:2"), stdin("sha256:3", "JS", 8, "evil:3")}, "python=runner-python typescript=runner-typescript javascript=runner-typescript shell=runner-python", 3, ""},
		{"a stranger's agent serves nothing", []Image{python, evil}, "python=runner-python typescript=evil:ts javascript=evil:ts shell=runner-python", 0, ""},
		{"listed wins over served", []Image{bundled, listed}, "typescript=runner-typescript javascript=mine:js shell=runner-typescript", 0, ""},
		{"named wins over served", []Image{node, stdin("sha256:1", "javascript", 1, "js:1")}, "typescript=mine:1 javascript=js:1 shell=mine:1", 0, ""},
		{"others in order", []Image{stdin("sha256:2", "zig", 1, "z:1"), stdin("sha256:1", "ada", 1, "a:1"), python}, "python=runner-python shell=runner-python ada=a:1 zig=z:1", 0, ""},
		{"no name", []Image{stdin("sha256:1", "", 1, "x:1"), stdin("sha256:2", "../etc", 1, "y:1"), stdin("sha256:3", "a\nb", 1, "z:1")}, "", 0, "x:1 y:1 z:1"},
		{"the agent cannot", []Image{{ID: "sha256:1", Tags: []string{"x:1"}, Language: "ruby", Agent: true}}, "", 0, "x:1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			set, notes, problems := FromImages(test.images)
			var got, wrong []string
			for _, r := range set {
				got = append(got, r.Name+"="+r.Image)
			}
			for _, p := range problems {
				wrong = append(wrong, p.Runner)
				if p.Problem == "" || p.Fix == "" {
					t.Errorf("the problem says too little: %+v", p)
				}
			}
			slices.Sort(wrong)
			if s := strings.Join(got, " "); s != test.want {
				t.Errorf("%q, want %q", s, test.want)
			}
			if len(notes) != test.notes || strings.Join(wrong, " ") != test.problems {
				t.Errorf("notes %q, problems %q", notes, problems)
			}
		})
	}

	set, _, _ := FromImages([]Image{python, node, stdin("sha256:9", "javascript", 1, "js:1")})
	py, _ := set.Lookup("python")
	if !slices.Equal(py.Argv, []string{"/opt/runners/python/bin/python", "{file}"}) || len(py.Persistent) == 0 || len(py.DriverSource) == 0 || !py.Displays ||
		py.Version != "Python 3.12.7" || py.ImageID != "sha256:aaaa" || !slices.Equal(py.Libraries, []string{"numpy", "pandas"}) || len(py.Mounts) > 0 ||
		py.Env["PATH"] != "/opt/runners/python/bin:/usr/local/bin:/usr/bin:/bin" {
		t.Errorf("Python: %+v", py)
	}
	sh, _ := set.Lookup("bash")
	if sh.Argv[0] != "/bin/bash" || sh.ImageID != "sha256:aaaa" || len(sh.Libraries) > 0 {
		t.Errorf("the shell: %+v", sh)
	}
	ts, _ := set.Lookup("typescript")
	if ts.Argv[0] != "/opt/runners/bin/node" || ts.ImageID != "sha256:bbbb" {
		t.Errorf("TypeScript: %+v", ts)
	}
	js, _ := set.Lookup("node") // by its alias, though the image is somebody else's
	if len(js.Argv) > 0 || len(js.Persistent) > 0 || js.ImageID != "sha256:9" || js.Title != "JavaScript" {
		t.Errorf("JavaScript by stdin: %+v", js)
	}
	// A label is a stranger's text.
	evil = python
	evil.Libraries = append(slices.Repeat([]string{"x"}, 1000), "<script>", strings.Repeat("y", 1000), "")
	if set, _, _ := FromImages([]Image{evil}); len(set[0].Libraries) != maxLibraries || slices.Contains(set[0].Libraries, "<script>") {
		t.Errorf("libraries: %q", set[0].Libraries)
	}
}
