package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"mcp-code-sandbox/internal/secret"
)

func TestValueNeverShows(t *testing.T) {
	const text = "hunter2-hunter2"
	v := secret.New(text)
	holder := struct {
		Token secret.Value
		Ptr   *secret.Value
	}{v, &v}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+" ", v)
		fmt.Fprintf(&out, verb+" ", holder)
	}
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("x", "token", v, "holder", holder, "ptr", &v)
	}
	if err := json.NewEncoder(&out).Encode(holder); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(&out, fmt.Errorf("wrapped: %v", v))
	if strings.Contains(out.String(), text) || strings.Contains(out.String(), fmt.Sprintf("%x", text)) {
		t.Fatalf("the secret shows:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "[redacted]") {
		t.Fatalf("nothing says [redacted]:\n%s", out.String())
	}
	if v.Reveal() != text {
		t.Fatalf("Reveal = %q", v.Reveal())
	}
}

func TestLoadAgreesAmongStarters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	const starters = 32
	got := make([]string, starters)
	var makers sync.Map
	var start, done sync.WaitGroup
	start.Add(1)
	for i := range starters {
		done.Go(func() {
			start.Wait()
			v, made, err := secret.Load(dir, "api-token")
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = v.Reveal()
			if made {
				makers.Store(i, true)
			}
		})
	}
	start.Done()
	done.Wait()
	n := 0
	makers.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d starters say that they made the key, want 1", n)
	}
	for i, s := range got {
		if s != got[0] || len(s) != 64 {
			t.Fatalf("starter %d has %q, starter 0 has %q", i, s, got[0])
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("left in the key directory: %v", entries)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "api-token"): 0o600} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, fi.Mode().Perm(), want)
		}
	}
}

func TestLoadRefusesDamagedFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "k"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := secret.Load(dir, "k"); err == nil || !strings.Contains(err.Error(), "delete it") {
		t.Fatalf("err = %v, want one that says what to do", err)
	}
}
