package docker

import (
	"strings"
	"testing"
)

// TestMatchImages: only complete names and digests match.
func TestMatchImages(t *testing.T) {
	id, digest := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	img := image{ID: id, tags: []string{"runner-python:latest", "reg.example.com:5000/x/py:1"}, digests: []string{"reg.example.com:5000/x/py@" + digest}}
	for entry, want := range map[string]bool{
		"runner-python": true, "runner-python:latest": true, "docker.io/library/runner-python": true, "localhost/runner-python": true, id: true, digest: true,
		"reg.example.com:5000/x/py:1": true, "reg.example.com:5000/x/py@" + digest: true, "reg.example.com:5000/x/py:1@" + digest: true,
		"runner-pytho": false, "runner-python:1": false, "x/py:1": false, "py": false, "reg.example.com:5000/x/py": false, "evil.example.com/runner-python": false,
		"sha256:" + strings.Repeat("c", 64): false, "evil@" + digest: false, "runner-python@" + id: false,
	} {
		w, err := parseImage(entry)
		if err != nil {
			t.Errorf("%s: %v", entry, err)
			continue
		}
		if got := w.matches(img); got != want {
			t.Errorf("%s: %t", entry, got)
		}
	}
	for _, entry := range []string{
		"", " ", "a b", "@", "x@", "@" + digest, id[:20], "sha256:", "sha256:" + strings.Repeat("A", 64), id + "0", "x@sha256:12", strings.Repeat("a", 64), strings.Repeat("b", 12),
		"-x", "a:b:c", "../x", "x\n", strings.Repeat("x/", 300), "*",
	} {
		if err := ParseImage(entry); err == nil {
			t.Errorf("%q is taken for an image", entry)
		}
	}
}
