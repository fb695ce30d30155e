package web_test

import (
	"bytes"
	"compress/gzip"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"mcp-code-sandbox/web"
)

// maxCompressed bounds the compressed size of the page.
const maxCompressed = 250 << 10

// TestBuiltPage: the page fits the server's content security policy, refers only to itself, and is
// small.
func TestBuiltPage(t *testing.T) {
	index, err := fs.ReadFile(web.Files(), "index.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range regexp.MustCompile(`<(?:script|link)\b[^>]*>(?:[^<]*)`).FindAllString(string(index), -1) {
		script := strings.HasPrefix(tag, "<script")
		if !strings.Contains(tag, `nonce="__CSP_NONCE__"`) && (script || strings.Contains(tag, "stylesheet") || strings.Contains(tag, "modulepreload")) {
			t.Errorf("no nonce: %s", tag)
		}
		if script && (!strings.Contains(tag, "src=") || strings.TrimSpace(tag[strings.Index(tag, ">")+1:]) != "") {
			t.Errorf("a script inside the page: %s", tag)
		}
	}
	if bad := regexp.MustCompile(`<style|\sstyle=|\son[a-z]+=|javascript:|(?:src|href)="(?:https?:)?//`).Find(index); bad != nil {
		t.Errorf("the index has %q", bad)
	}
	if !bytes.Contains(index, []byte(`<meta name="csp-nonce" content="__CSP_NONCE__">`)) {
		t.Error("the index does not tell its scripts the nonce")
	}

	hashed := regexp.MustCompile(`^assets/[\w.-]+-[\w-]{8}\.[a-z0-9]+$`)
	total := 0
	err = fs.WalkDir(web.Files(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasPrefix(name, "assets/") && !hashed.MatchString(name) {
			t.Errorf("%s is served for ever, but has no hash in its name", name)
		}
		if strings.HasSuffix(name, ".map") {
			t.Errorf("%s is of no use to anybody who uses the page", name)
		}
		content, err := fs.ReadFile(web.Files(), name)
		if err != nil {
			return err
		}
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		if _, err := w.Write(content); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		total += z.Len()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes, compressed", total)
	if total > maxCompressed {
		t.Errorf("the page has %d bytes compressed, which is more than %d", total, maxCompressed)
	}
}
