package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func openAudit(t *testing.T, path string) *Trail {
	t.Helper()
	a, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

func write(t *testing.T, a *Trail, path string) {
	t.Helper()
	if err := a.Append(Record{Event: EventIntent, Path: path}); err != nil {
		t.Fatal(err)
	}
}

func verifyFiles(t *testing.T, paths ...string) (uint64, error) {
	t.Helper()
	var all []byte
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	v, err := verify(bytes.NewReader(all))
	return v.Last, err
}

// Several processes with several writers each write one chain, and so does a process that starts
// later.
func TestAuditIsShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "audit.jsonl")
	var wg sync.WaitGroup
	for range 4 {
		a := openAudit(t, path)
		for i := range 2 {
			wg.Go(func() {
				for j := range 50 {
					if err := a.Append(Record{Event: EventIntent, Path: fmt.Sprint(i, j)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	a := openAudit(t, path)
	write(t, a, "/last")
	if seq, err := verifyFiles(t, path); err != nil || seq != 401 {
		t.Errorf("%d lines, %v", seq, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 && runtime.GOOS != "windows" {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}

func TestAuditShowsTampering(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a := openAudit(t, path)
	for i := range 4 {
		write(t, a, fmt.Sprint("/p", i))
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(good, []byte("\n"))[:4]
	join := func(l ...[]byte) []byte { return bytes.Join(l, nil) }
	forged, _, err := seal(Record{Seq: 2, Event: EventIntent, Path: "/forged", Prev: genesis})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"changed":           bytes.Replace(good, []byte("/p1"), []byte("/px"), 1),
		"a hash changed":    bytes.Replace(good, []byte(`"hash":"`), []byte(`"hash":"0`), 1),
		"removed":           join(lines[0], lines[2], lines[3]),
		"the first removed": nil, // see below
		"swapped":           join(lines[0], lines[2], lines[1], lines[3]),
		"inserted":          join(lines[0], forged, lines[1]),
		"replaced":          join(lines[0], forged, lines[2]),
		"twice":             join(lines[0], lines[0]),
		"cut off":           good[:len(good)-5],
		"not JSON":          join(lines[0], []byte("hello\n")),
		"too long":          join(lines[0], bytes.Repeat([]byte("x"), 2*maxLine)),
	} {
		if text == nil {
			text = join(lines[1:]...) // looks like the continuation of a file that was moved away
			if v, err := verify(bytes.NewReader(text)); err != nil || v.First != 2 || v.Last != 4 {
				t.Errorf("a continuation: %+v, %v", v, err)
			}
			text = bytes.Replace(text, []byte(`"seq":2`), []byte(`"seq":1`), 1)
		}
		if v, err := verify(bytes.NewReader(text)); err == nil {
			t.Errorf("%s: taken for whole, %d lines", name, v.Last)
		}
	}
	if seq, err := verifyFiles(t, path); err != nil || seq != 4 {
		t.Errorf("the original: %d, %v", seq, err)
	}
}

// TestAuditShowsACutTail: an attacker hides a call by removing the last lines or replacing the last
// one. Verification finds it, and later records do not cover it up, even after a restart.
func TestAuditShowsACutTail(t *testing.T) {
	for name, cut := range map[string]func(lines [][]byte) []byte{
		"the last": func(l [][]byte) []byte { return bytes.Join(l[:3], nil) },
		"three":    func(l [][]byte) []byte { return l[0] },
		"all":      func([][]byte) []byte { return nil },
		"written anew": func(l [][]byte) []byte {
			third, _, err := unseal(l[2])
			if err != nil {
				t.Fatal(err)
			}
			_, prev, _ := unseal(l[2])
			forged, _, err := seal(Record{Seq: third.Seq + 1, Event: EventIntent, Path: "/harmless", Prev: prev})
			if err != nil {
				t.Fatal(err)
			}
			return append(bytes.Join(l[:3], nil), forged...)
		},
	} {
		for _, restarted := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "audit.jsonl")
			a := openAudit(t, path)
			for i := range 4 {
				write(t, a, fmt.Sprint("/p", i))
			}
			if v, err := VerifyFile(path); err != nil || v.Last != 4 {
				t.Fatalf("the original: %d, %v", v.Last, err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, cut(bytes.SplitAfter(text, []byte("\n"))[:4]), 0o600); err != nil {
				t.Fatal(err)
			}
			if v, err := VerifyFile(path); err == nil {
				t.Errorf("%s: taken for whole, %d lines", name, v.Last)
			}
			if restarted {
				a = openAudit(t, path)
			}
			write(t, a, "/next")
			write(t, a, "/next")
			if v, err := VerifyFile(path); name == "all" { // like a trail that was moved away, it starts with a later record
				if text, rerr := os.ReadFile(path); rerr != nil || err != nil || v.First != 5 || v.Last != 6 || !bytes.HasPrefix(text, []byte(`{"seq":5,`)) {
					t.Errorf("%s, restarted %t: %d, %v, %v", name, restarted, v.Last, err, rerr)
				}
			} else if err == nil {
				t.Errorf("%s, restarted %t: covered up by later lines", name, restarted)
			}
		}
	}
}

// An incomplete line of a crash is removed. A file that was moved away is continued by a new one.
func TestAuditGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a, b := openAudit(t, path), openAudit(t, path)
	write(t, a, "/1")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"seq":2,"ti`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	write(t, a, "/2")
	if seq, err := verifyFiles(t, path); err != nil || seq != 2 {
		t.Errorf("after a crash: %d, %v", seq, err)
	}
	if runtime.GOOS == "windows" {
		return // open files cannot be moved here
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, b, "/3")
	write(t, a, "/4")
	if seq, err := verifyFiles(t, path+".1", path); err != nil || seq != 4 {
		t.Errorf("after it was moved: %d, %v", seq, err)
	}

	foreign := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(foreign, []byte("something else\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(foreign); err == nil || !strings.Contains(err.Error(), "move the file away") {
		t.Errorf("a file of something else: %v", err)
	}
}

// A trail appears with its first record, and a server that records nothing leaves nothing.
func TestAuditIsLazy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	a := openAudit(t, filepath.Join(dir, "a.jsonl"))
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("there is a directory before the first record: %v", err)
	}
	write(t, a, "/first")
	if seq, err := verifyFiles(t, filepath.Join(dir, "a.jsonl")); err != nil || seq != 1 {
		t.Errorf("%d, %v", seq, err)
	}
}

func FuzzAuditLine(f *testing.F) {
	line, _, err := seal(Record{Seq: 1, Event: EventIntent, Path: "/a", Query: []string{"k"}, Prev: genesis})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte(hashField))
	f.Fuzz(func(t *testing.T, line []byte) {
		if r, hash, err := unseal(line); err == nil {
			if cut := bytes.LastIndex(line, []byte(hashField)); lineHash(line[:cut]) != hash {
				t.Fatalf("%q was taken as %+v", line, r)
			}
		}
	})
}

// A trail that is moved away again and again, while several processes write, stays one chain.
func TestAuditMovedWhileWritten(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("open files cannot be moved")
	}
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	var writers sync.WaitGroup
	const each = 300
	for range 3 {
		a := openAudit(t, path)
		writers.Go(func() {
			for range each {
				if err := a.Append(Record{Event: EventIntent}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { writers.Wait(); close(ended) }()
	var files []string
	for going := true; going; {
		select {
		case <-ended:
			going = false
		default:
		}
		if fi, err := os.Stat(path); err == nil && fi.Size() > 0 {
			moved := fmt.Sprint(path, ".", len(files))
			if err := os.Rename(path, moved); err != nil {
				t.Fatal(err)
			}
			files = append(files, moved)
		}
	}
	if seq, err := verifyFiles(t, files...); err != nil || seq != 3*each {
		t.Errorf("%d lines in %d files, %v", seq, len(files), err)
	}
}
