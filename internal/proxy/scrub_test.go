package proxy

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
)

// credentialText has a character to escape for every encoding.
const credentialText = "dd+live/9f8e?7d6c&5b4a=_<tok~en>"

// encoded returns a text in the encodings that must be masked.
func encoded(s string) map[string]string {
	var percent, unicode, mixed strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&percent, "%%%02x", s[i])
		fmt.Fprintf(&unicode, `\u%04X`, s[i])
		switch i % 4 {
		case 0:
			mixed.WriteByte(s[i])
		case 1:
			fmt.Fprintf(&mixed, "%%%02X", s[i])
		case 2:
			fmt.Fprintf(&mixed, "&#%d;", s[i])
		case 3:
			fmt.Fprintf(&mixed, `\x%02x`, s[i])
		}
	}
	quoted, _ := json.Marshal(s)
	b64 := base64.StdEncoding.EncodeToString([]byte(s))
	return map[string]string{
		"raw":                  s,
		"base64":               b64,
		"base64, 1 before":     base64.StdEncoding.EncodeToString([]byte(":" + s)),
		"base64, 2 before":     base64.StdEncoding.EncodeToString([]byte("u:" + s)),
		"base64, around":       base64.StdEncoding.EncodeToString([]byte("user:" + s + "\nmore of it")),
		"base64url":            base64.URLEncoding.EncodeToString([]byte(s)),
		"base64url, 1 before":  base64.RawURLEncoding.EncodeToString([]byte("x" + s)),
		"base64url, 2 before":  base64.RawURLEncoding.EncodeToString([]byte("xy" + s + "z")),
		"base64 in a query":    url.QueryEscape(b64),
		"base64 in PHP's JSON": strings.ReplaceAll(b64, "/", `\/`),
		"query":                url.QueryEscape(s),
		"path":                 url.PathEscape(s),
		"percent":              percent.String(),
		"hex":                  hex.EncodeToString([]byte(s)),
		"HEX":                  strings.ToUpper(hex.EncodeToString([]byte(s))),
		"JSON":                 strings.Trim(string(quoted), `"`),
		"PHP's JSON":           strings.ReplaceAll(s, "/", `\/`),
		"unicode escapes":      unicode.String(),
		"HTML":                 html.EscapeString(s),
		"mixed":                mixed.String(),
	}
}

// newScrubber returns a scrubber for secrets, or nil if they are too short.
func newScrubber(secrets []string) *scrubber { return new(service).scrubber(secrets) }

func scrubAll(t *testing.T, secrets []string, src io.Reader, room int) string {
	t.Helper()
	var out bytes.Buffer
	r := newScrubReader(src, newScrubber(secrets))
	if _, err := io.CopyBuffer(struct{ io.Writer }{&out}, struct{ io.Reader }{r}, make([]byte, room)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// In every encoding, and wherever the stream is split, the secret is masked and all else is
// unchanged.
func TestScrubEncodingsAtEverySplit(t *testing.T) {
	for name, text := range encoded(credentialText) {
		body := `{"a": "100%", "auth":"` + text + `", "b": "&amp;\\u00e9"}` + text
		want := ""
		for split := range len(body) + 1 {
			src := io.MultiReader(strings.NewReader(body[:split]), strings.NewReader(body[split:]))
			got := scrubAll(t, []string{credentialText}, src, 64<<10)
			if want == "" {
				want = got
			}
			if got != want {
				t.Fatalf("%s split at %d: %q, otherwise %q", name, split, got, want)
			}
		}
		if len(want) != len(body) || !strings.HasPrefix(want, `{"a": "100%", "auth":"`) || !strings.Contains(want, `", "b": "&amp;\\u00e9"}`) {
			t.Errorf("%s: other text was changed: %q", name, want)
		}
		cores := []string{text}
		if strings.HasPrefix(name, "base64") { // shares characters with the text around it
			cores = nil
			for _, s := range encodings(credentialText) {
				cores = append(cores, string(s))
			}
		}
		for _, core := range cores {
			for i := 0; i+8 <= len(core); i++ {
				if strings.Contains(want, core[i:i+8]) {
					t.Fatalf("%s: %q of %q comes through: %q", name, core[i:i+8], text, want)
				}
			}
		}
		for _, reader := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
			for _, room := range []int{1, 7, 64 << 10} {
				if got := scrubAll(t, []string{credentialText}, reader(strings.NewReader(body)), room); got != want {
					t.Fatalf("%s in small pieces: %q, want %q", name, got, want)
				}
			}
		}
	}
}

func TestScrub(t *testing.T) {
	const secret = "abcabcabd"
	mask := strings.Repeat("*", len(secret))
	for _, tc := range []struct{ name, in, want string }{
		{"nothing", "hello", "hello"},
		{"empty", "", ""},
		{"whole", secret, mask},
		{"twice", secret + secret, mask + mask},
		{"after a false start", "abcabc" + secret, "abcabc" + mask},
		{"after an escape that is none", "%zz%4" + secret + "&amp", "%zz%4" + mask + "&amp"},
		{"almost", "abcabcabe", "abcabcabe"},
		{"cut off at the end", "x abcabcab", "x ********"},
		{"a little of it at the end", "x abcabc", "x abcabc"},
	} {
		for _, room := range []int{1, 4096} {
			if got := scrubAll(t, []string{secret, "ab"}, strings.NewReader(tc.in), room); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
			}
		}
	}
	// Two overlapping secrets are both masked completely.
	if got := scrubAll(t, []string{"aaaabbbb", "bbbbcccc"}, iotest.OneByteReader(strings.NewReader("-aaaabbbbcccc-")), 4096); got != "-************-" {
		t.Errorf("overlapping: %q", got)
	}
	h := http.Header{"X-Abc-Def-Ghi": {"1"}, "X-Echo": {"b3RoZXI6", "abc-def-ghi"}}
	if newScrubber([]string{"abc-DEF-ghi", "abc-def-ghi"}).header(h); len(h) != 1 || h["X-Echo"][0] != "b3RoZXI6" || h["X-Echo"][1] != "***********" {
		t.Errorf("header: %v", h)
	}
	if newScrubber([]string{"short", ""}) != nil {
		t.Error("texts that are too short are looked for")
	}
}

// When the stream breaks, what may be the start of a secret is dropped.
func TestScrubBrokenStream(t *testing.T) {
	src := io.MultiReader(strings.NewReader("x: "+credentialText[:20]), iotest.ErrReader(io.ErrUnexpectedEOF))
	got, err := io.ReadAll(newScrubReader(src, newScrubber([]string{credentialText})))
	if string(got) != "x: " || err != io.ErrUnexpectedEOF {
		t.Errorf("%q, %v", got, err)
	}
}

// An event is passed on at once, not with the next one.
func TestScrubDoesNotDelay(t *testing.T) {
	pr, pw := io.Pipe()
	defer pw.Close()
	r := newScrubReader(pr, newScrubber([]string{credentialText}))
	buf := make([]byte, 64<<10)
	for i := range 3 {
		event := fmt.Sprintf("data: %d\n\n", i)
		go io.WriteString(pw, event)
		if n, err := r.Read(buf); err != nil || string(buf[:n]) != event {
			t.Fatalf("%q, %v", buf[:n], err)
		}
	}
}

// FuzzScrub compares with a search without streams: after scrubbing, no plain encoding is left, and
// nothing else has changed.
func FuzzScrub(f *testing.F) {
	for _, text := range encoded(credentialText) {
		f.Add([]byte("x"+text+"y"), uint64(1))
	}
	f.Fuzz(func(t *testing.T, body []byte, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		for _, s := range encodings(credentialText) { // so that something is found
			if rnd.IntN(3) == 0 {
				at := rnd.IntN(len(body) + 1)
				body = append(append(bytes.Clone(body[:at]), s[:rnd.IntN(len(s)+1)]...), body[at:]...)
			}
		}
		whole := scrubAll(t, []string{credentialText}, bytes.NewReader(body), len(body)+64<<10)
		var src io.Reader = bytes.NewReader(body)
		if rnd.IntN(2) == 0 {
			src = iotest.OneByteReader(src)
		}
		if got := scrubAll(t, []string{credentialText}, src, 1+rnd.IntN(5000)); got != whole {
			t.Fatalf("in pieces %q, at once %q", got, whole)
		}
		if len(whole) != len(body) {
			t.Fatalf("%d bytes became %d", len(body), len(whole))
		}
		for _, s := range encodings(credentialText) {
			if strings.Contains(whole, string(s)) {
				t.Fatalf("%q is left in %q", s, whole)
			}
		}
		for i := range body {
			if whole[i] != body[i] && whole[i] != maskByte {
				t.Fatalf("byte %d of %q became %q", i, body, whole[i])
			}
		}
	})
}

func BenchmarkScrub(b *testing.B) {
	body := bytes.Repeat([]byte(`{"series":[{"metric":"system.cpu.user","points":[[1700000000,12.5],[1700000060,13.25]],"host":"web-01","tags":["env:prod","path:\/var\/lib"]}]}`+"\n"), 7000)
	buf := make([]byte, copyBuffer)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{newScrubReader(bytes.NewReader(body), newScrubber([]string{"ddp_0123456789abcdefghijABCDEFGHIJ0123"}))}, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// Needles are kept from call to call, and never used for another credential.
func TestScrubberOfAnotherCredential(t *testing.T) {
	var s service
	const text = "first-credential second-credential"
	for _, secret := range []string{"first-credential", "first-credential", "second-credential", "first-credential"} {
		if got, want := s.scrubber([]string{secret}).text(text), strings.ReplaceAll(text, secret, strings.Repeat("*", len(secret))); got != want {
			t.Errorf("with %s: %q, want %q", secret, got, want)
		}
	}
	if s.scrubber([]string{"short"}) != nil {
		t.Error("texts that are too short are looked for")
	}
}
