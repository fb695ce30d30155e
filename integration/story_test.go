//go:build linux

package integration

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestStory is the product in one test: a client runs code and downloads the file it made.
func TestStory(t *testing.T) {
	s := serve(t)
	r := s.run(t, "story", "python", `
import pandas as pd
pd.DataFrame({"a": [1, 2], "b": [3, 4]}).to_csv("/data/table.csv", index=False)
print("saved")
`)
	if !r.Success || r.Output != "saved\n" || len(r.Files) != 1 || r.Files[0].Name != "table.csv" {
		t.Fatalf("run_code: %+v", r)
	}
	get := func(url string) (int, http.Header, string) {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header, string(b)
	}
	status, header, body := get(r.Files[0].URL)
	if status != http.StatusOK || body != "a,b\n1,3\n2,4\n" {
		t.Fatalf("download: %d %q", status, body)
	}
	if ct := header.Get("Content-Type"); !strings.HasPrefix(ct, "text/csv") {
		t.Errorf("Content-Type is %q", ct)
	}
	if cd := header.Get("Content-Disposition"); !strings.HasPrefix(cd, "attachment") {
		t.Errorf("Content-Disposition is %q", cd)
	}
	last := r.Files[0].URL[len(r.Files[0].URL)-1:]
	forged := strings.TrimSuffix(r.Files[0].URL, last) + map[bool]string{true: "1", false: "0"}[last == "0"]
	if status, _, _ := get(forged); status != http.StatusForbidden {
		t.Errorf("a wrong signature gives %d", status)
	}
	if r := s.run(t, "story", "shell", "cat table.csv"); r.Output != "a,b\n1,3\n2,4\n" {
		t.Errorf("another runner of the session sees %q", r.Output)
	}
	if r := s.run(t, "another", "shell", "ls -A /data"); r.Output != "" || len(r.Files) != 0 {
		t.Errorf("another session sees %+v", r)
	}
}
