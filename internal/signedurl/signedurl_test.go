package signedurl

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"
)

const base = "https://sandbox.example.com"

var start = time.Unix(1_700_000_000, 0)

func at(t *time.Time) func() time.Time { return func() time.Time { return *t } }

// hexMAC is the contract's formula, written again so that the test does not rely on the code.
func hexMAC(secret, text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

func TestFileURLIsTheContractsFormula(t *testing.T) {
	plain := New([]byte("secret"), base+"/", 0, nil)
	expiring := New([]byte("secret"), base, time.Hour, at(&start))
	for _, tt := range []struct{ got, want string }{
		// Computed with: printf 'abc123/result.csv' | openssl dgst -sha256 -hmac secret
		{plain.FileURL("abc123", "result.csv"), base + "/files/abc123/result.csv?sig=0edd8300062347c2b738ac2db4f060656d8116988b4cd58647d16be01248a5c3"},
		{plain.FileURL("abc123", "result.csv"), base + "/files/abc123/result.csv?sig=" + hexMAC("secret", "abc123/result.csv")},
		{plain.FileURL("a b", "plots/1 & 2?.png"), base + "/files/a%20b/plots/1%20&%202%3F.png?sig=" + hexMAC("secret", "a b/plots/1 & 2?.png")},
		{plain.FileURL("c", "%2e%2e"), base + "/files/c/%252e%252e?sig=" + hexMAC("secret", "c/%2e%2e")},
		{plain.FileURL("c", "图\n\xff"), base + "/files/c/%E5%9B%BE%0A%FF?sig=" + hexMAC("secret", "c/图\n\xff")},
		{expiring.FileURL("c", "a/b"), base + "/files/c/a/b?expires=1700003600&sig=" + hexMAC("secret", "1700003600\nc/a/b")},
	} {
		if tt.got != tt.want {
			t.Errorf("got  %s\nwant %s", tt.got, tt.want)
		}
	}
	slashes := New([]byte("secret"), "http://127.0.0.1:8080//", 0, nil)
	if got := slashes.FileURL("c", "f"); !strings.HasPrefix(got, "http://127.0.0.1:8080/files/c/f?") {
		t.Errorf("with a base that ends with slashes: %s", got)
	}
}

// split parses a link as a server would.
func split(t *testing.T, link string) (id, name string, q url.Values) {
	t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	id, name, err = ParsePath(u.EscapedPath())
	if err != nil {
		t.Fatalf("%s: %v", link, err)
	}
	return id, name, u.Query()
}

func TestVerify(t *testing.T) {
	now := start
	plain := New([]byte("secret"), base, 0, at(&now))
	expiring := New([]byte("secret"), base, time.Hour, at(&now))
	stranger := New([]byte("other"), base, 0, at(&now))
	upload := plain.UploadURL("c", "f", "ticket", start.Add(time.Hour))
	sig := func(text string) string { return "sig=" + hexMAC("secret", text) }

	for _, tt := range []struct {
		desc   string
		signer *Signer
		link   string
		after  time.Duration
		want   error
	}{
		{"plain", plain, plain.FileURL("c", "a/b c"), 0, nil},
		{"plain, years later", plain, plain.FileURL("c", "f"), 1e5 * time.Hour, nil},
		{"escaped slash", plain, strings.Replace(plain.FileURL("c", "a/b"), "a/b", "a%2Fb", 1), 0, nil},
		{"odd name", plain, plain.FileURL("c", "-a\n\xff\\%2e%2e"), 0, nil},
		{"expiring", expiring, expiring.FileURL("c", "f"), time.Hour - time.Second, nil},
		{"expiring link, expiry switched off", plain, expiring.FileURL("c", "f"), 0, nil},
		{"user, for a week", plain, plain.FileURL("~key.gen", "f"), UserTTL - time.Second, nil},
		{"user, expiring", expiring, expiring.FileURL("~key.gen", "f"), time.Hour - time.Second, nil},

		{"expired", expiring, expiring.FileURL("c", "f"), time.Hour, ErrExpired},
		{"expired, expiry switched off", plain, expiring.FileURL("c", "f"), time.Hour, ErrExpired},
		{"no expiry where one is needed", expiring, plain.FileURL("c", "f"), 0, ErrSignature},
		{"other secret", plain, stranger.FileURL("c", "f"), 0, ErrSignature},
		{"other file", plain, strings.Replace(plain.FileURL("c", "f"), "/f?", "/g?", 1), 0, ErrSignature},
		{"other id", plain, strings.Replace(plain.FileURL("c", "f"), "/c/", "/d/", 1), 0, ErrSignature},
		{"slash moved", plain, base + "/files/c/a/b?" + sig("c/a") + "&x=/b", 0, ErrSignature},
		{"no signature", plain, base + "/files/c/f", 0, ErrSignature},
		{"empty signature", plain, base + "/files/c/f?sig=", 0, ErrSignature},
		{"half a signature", plain, base + "/files/c/f?" + sig("c/f")[:36], 0, ErrSignature},
		{"longer signature", plain, base + "/files/c/f?" + sig("c/f") + "00", 0, ErrSignature},
		{"upper case", plain, base + "/files/c/f?sig=" + strings.ToUpper(hexMAC("secret", "c/f")), 0, ErrSignature},
		{"second signature", plain, base + "/files/c/f?sig=00&" + sig("c/f"), 0, ErrSignature},
		{"empty expiry", plain, base + "/files/c/f?expires=&" + sig("\nc/f"), 0, ErrSignature},
		{"expiry made up", plain, plain.FileURL("c", "f") + "&expires=1800000000", 0, ErrSignature},
		{"expiry prolonged", expiring, strings.Replace(expiring.FileURL("c", "f"), "1700003600", "1800000000", 1), 0, ErrSignature},
		{"expiry spelt differently", expiring, base + "/files/c/f?expires=%2B1700003600&" + sig("+1700003600\nc/f"), 0, ErrSignature},
		{"expiry with an id in it", expiring, base + "/files/c/f?expires=1700003600%0Ax&" + sig("1700003600\nx\nc/f"), 0, ErrSignature},
		{"user, after a week", plain, plain.FileURL("~key.gen", "f"), UserTTL, ErrExpired},
		{"user, expired", expiring, expiring.FileURL("~key.gen", "f"), time.Hour, ErrExpired},
		{"user, without an expiry", plain, base + "/files/~key/f?sig=" + hexMAC(string(plain.user), "~key/f"), 0, ErrSignature},
		{"user, another generation", plain, strings.Replace(plain.FileURL("~key.gen", "f"), "key.gen", "key.new", 1), 0, ErrSignature},
		{"user's link by the plain formula", plain, base + "/files/~key/f?" + sig("~key/f"), 0, ErrSignature},
		{"upload link", plain, upload, 0, ErrSignature},
	} {
		now = start
		id, name, q := split(t, tt.link)
		now = start.Add(tt.after)
		if err := tt.signer.Verify(id, name, q); !errors.Is(err, tt.want) || err != tt.want {
			t.Errorf("%s: %v, want %v", tt.desc, err, tt.want)
		}
	}
	if err := plain.Verify("1700003600\nc", "f", url.Values{"sig": {hexMAC("secret", "1700003600\nc/f")}}); err != ErrSignature {
		t.Errorf("an id with a line break: %v", err)
	}
}

func TestVerifyUpload(t *testing.T) {
	now := start
	s := New([]byte("secret"), base, 0, at(&now))
	link := s.UploadURL("c", "a/b c", "T1", start.Add(time.Minute))
	edit := func(old, new string) string {
		if !strings.Contains(link, old) {
			t.Fatalf("%s has no %s", link, old)
		}
		return strings.Replace(link, old, new, 1)
	}
	for _, tt := range []struct {
		desc  string
		link  string
		after time.Duration
		want  error
	}{
		{"good", link, 59 * time.Second, nil},
		{"expired", link, time.Minute, ErrExpired},
		{"other ticket", edit("upload=T1", "upload=T2"), 0, ErrSignature},
		{"no ticket", edit("upload=T1", "upload="), 0, ErrSignature},
		{"other file", edit("/a/", "/x/"), 0, ErrSignature},
		{"other id", edit("/c/", "/d/"), 0, ErrSignature},
		{"prolonged", edit("expires=17", "expires=18"), 0, ErrSignature},
		{"download link", s.FileURL("c", "a/b c") + "&upload=T1&expires=1700000060", 0, ErrSignature},
		{"other secret", New([]byte("other"), base, 0, nil).UploadURL("c", "a/b c", "T1", start.Add(time.Minute)), 0, ErrSignature},
	} {
		now = start.Add(tt.after)
		id, name, q := split(t, tt.link)
		ticket, err := s.VerifyUpload(id, name, q)
		if err != tt.want || (err == nil) != (ticket == "T1") {
			t.Errorf("%s: %q, %v, want %v", tt.desc, ticket, err, tt.want)
		}
	}
}

func TestParsePath(t *testing.T) {
	for _, tt := range []struct{ path, id, name string }{ // id "" means refused
		{"/files/c/f", "c", "f"},
		{"/files/c/a/b/c.png", "c", "a/b/c.png"},
		{"/files/c/a%2Fb", "c", "a/b"},
		{"/files/c/a%2fb", "c", "a/b"},
		{"/files/c/-rf", "c", "-rf"},
		{"/files/c/a+b%20c", "c", "a+b c"},
		{"/files/c/%E5%9B%BE.png", "c", "图.png"},
		{"/files/c/%252e%252e/x", "c", "%2e%2e/x"}, // unescaped once, so this is a directory with an odd name
		{"/files/c/%252F", "c", "%2F"},
		{"/files/c/a%0Ab", "c", "a\nb"},
		{"/files/c/...", "c", "..."},
		{"/files/~key/f", "~key", "f"},

		{"/files/c", "", ""},
		{"/files/c/", "", ""},
		{"/files//f", "", ""},
		{"/files/c/f/", "", ""},
		{"/files/c/f%2F", "", ""},
		{"/files/c//f", "", ""},
		{"/files/c/%2Fetc/passwd", "", ""},
		{"/files/c/..", "", ""},
		{"/files/c/../x", "", ""},
		{"/files/c/%2e%2e/x", "", ""},
		{"/files/c/.%2E/x", "", ""},
		{"/files/c/a%2F..%2Fx", "", ""},
		{"/files/c/./x", "", ""},
		{"/files/c/a%00b", "", ""},
		{"/files/c/a%zz", "", ""},
		{"/files/c/a%2", "", ""},
		{"/files/%2e%2e/x", "", ""},
		{"/files/./x", "", ""},
		{"/files/a%2Fb/x", "", ""},
		{"/files/a%0Ab/x", "", ""},
		{"/files/a%00/x", "", ""},
		{"/file/c/x", "", ""},
		{"files/c/x", "", ""},
		{"", "", ""},
	} {
		id, name, err := ParsePath(tt.path)
		if id != tt.id || name != tt.name || (err == nil) != (tt.id != "") {
			t.Errorf("ParsePath(%q) = %q, %q, %v; want %q, %q", tt.path, id, name, err, tt.id, tt.name)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{
		"/files/c/f", "/files/c/a/b", "/files/c/a%2Fb", "/files/c/%2e%2e/x", "/files/c/%252e%252e/x", "/files/c/%00", "/files/c//x",
		"/files/c/x/", "/files/%2F/x", "/files/~k/x", "/files/c/%ff%0a?", "/files/c/;a,b", "",
	} {
		f.Add(s)
	}
	s := New([]byte("secret"), "", 0, nil)
	f.Fuzz(func(t *testing.T, path string) {
		id, name, err := ParsePath(path)
		if err != nil {
			if id != "" || name != "" {
				t.Fatalf("refused, but returned %q, %q", id, name)
			}
			return
		}
		if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\x00\n") || strings.ContainsRune(name, 0) {
			t.Fatalf("accepted id %q, name %q", id, name)
		}
		for _, segment := range strings.Split(name, "/") {
			if segment == "" || segment == "." || segment == ".." {
				t.Fatalf("accepted name %q", name)
			}
		}
		// A link made from the result parses to the same result and verifies.
		u, err := url.Parse(s.FileURL(id, name))
		if err != nil {
			t.Fatal(err)
		}
		id2, name2, err := ParsePath(u.EscapedPath())
		if err != nil || id2 != id || name2 != name {
			t.Fatalf("%q, %q became %q, %q, %v", id, name, id2, name2, err)
		}
		if err := s.Verify(id, name, u.Query()); err != nil {
			t.Fatal(err)
		}
	})
}
