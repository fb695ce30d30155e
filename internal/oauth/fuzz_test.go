package oauth

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// loopbackAddress splits an http URL on loopback, without net/url: host, port, the rest.
var loopbackAddress = regexp.MustCompile(`^http://(localhost|127(?:\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+\])(?::([0-9]*))?(|[/?][^#]*)$`)

// FuzzMatchRedirect: a URI matches if it is registered, letter for letter, or differs from a
// registered loopback URI in the port only.
func FuzzMatchRedirect(f *testing.F) {
	for _, s := range []string{"https://client.example/cb", "http://127.0.0.1:1/cb", "http://127.0.0.1:1@evil.example/cb", "http://[::1]:9/cb?x=1", "cursor://a/b", "http://localhost:8080/cb#", "http://localhost:80%41/cb"} {
		f.Add("http://127.0.0.1/cb", s)
		f.Add(s, s)
		f.Add(s, "http://localhost/cb")
	}
	f.Fuzz(func(t *testing.T, registered, raw string) {
		if checkRedirectURI(registered) != nil || !matchRedirect([]string{registered}, raw) {
			return
		}
		if strings.ContainsAny(raw, " \t\r\n\x00\\#") {
			t.Errorf("%q is accepted", raw)
		}
		if raw == registered {
			return
		}
		want, got := loopbackAddress.FindStringSubmatch(registered), loopbackAddress.FindStringSubmatch(raw)
		if want == nil || got == nil || want[1] != got[1] || want[3] != got[3] {
			t.Errorf("%q is accepted for %q", raw, registered)
		}
	})
}

// FuzzEmail searches for an address that is allowed although its domain is not.
func FuzzEmail(f *testing.F) {
	list, err := newAllowList([]string{"example.com"}, []string{"bob@other.example"})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"ann@example.com", "ann@example.com@evil.example", "BOB@OTHER.EXAMPLE", "@example.com", "ann@example.com\x00", "ann@\u212aexample.com"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if !list.email(address) {
			return
		}
		parts := strings.Split(address, "@")
		if len(parts) != 2 || parts[0] == "" || !slices.Contains([]string{"example.com", "other.example"}, strings.ToLower(parts[1])) || len(parts[1]) > len("other.example") {
			t.Errorf("%q comes in", address)
		}
	})
}
