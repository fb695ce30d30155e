package egress

import (
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/audit"
)

func newEgress(t *testing.T, cfg Config) *Egress {
	t.Helper()
	if cfg.Audit == nil {
		cfg.Audit, _ = audit.Open(filepath.Join(t.TempDir(), "audit.jsonl"))
		t.Cleanup(func() { cfg.Audit.Close() })
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestCheck(t *testing.T) {
	e := newEgress(t, Config{})
	long := strings.Repeat("a.", 127) + "com"
	for text, want := range map[string]string{
		"api.example.com":                        "api.example.com:443 api.example.com:80",
		"API.Example.COM.":                       "api.example.com:443 api.example.com:80",
		"api.example.com:8443":                   "api.example.com:8443",
		"api.example.com.:443":                   "api.example.com:443",
		"*.example.org":                          "*.example.org:443 *.example.org:80",
		"*.Example.org:5432":                     "*.example.org:5432",
		"*.user.github.io":                       "*.user.github.io:443 *.user.github.io:80",
		"*.city.kawasaki.jp":                     "*.city.kawasaki.jp:443 *.city.kawasaki.jp:80",
		"*.example.kawasaki.jp":                  "! many owners", // of example.kawasaki.jp, a public suffix
		"xn--bcher-kva.example":                  "xn--bcher-kva.example:443 xn--bcher-kva.example:80",
		"127.0.0.1.nip.example":                  "127.0.0.1.nip.example:443 127.0.0.1.nip.example:80",
		"_dmarc.a-b_c.example":                   "_dmarc.a-b_c.example:443 _dmarc.a-b_c.example:80",
		"0x7f.example.com":                       "0x7f.example.com:443 0x7f.example.com:80",
		"":                                       "! must not be empty",
		"127.0.0.1":                              "! is an IP address",
		"127.0.0.1:443":                          "! is an IP address",
		"127.0.0.1.":                             "! is an IP address",
		"127.1":                                  "! is an IP address",
		"0177.0.0.1":                             "! is an IP address",
		"0x7f.0.0.1":                             "! is an IP address",
		"0x7f000001":                             "! is an IP address",
		"1.0X7f":                                 "! is an IP address",
		"1.0x":                                   "! is an IP address",
		"2130706433":                             "! is an IP address",
		"2130706433:80":                          "! is an IP address",
		"::1":                                    "! is an IP address",
		"[::1]":                                  "! is an IP address",
		"[::1]:443":                              "! is an IP address",
		"::ffff:127.0.0.1":                       "! is an IP address",
		"fe80::1%eth0":                           "! is an IP address",
		"[v1.x]":                                 "! is an IP address",
		"*.0.0.1":                                "! is an IP address",
		"https://a.example.com":                  "! the host's name only, such as a.example.com",
		"https://u:p@b.example.com:8443/x":       "! the host's name only, such as b.example.com:8443",
		"https://10.0.0.1/x":                     "! the host's name only, such as api.example.com",
		"a.example.com/path":                     "! the host's name only",
		`a.example.com\path`:                     "! the host's name only",
		"a.example.com?q":                        "! the host's name only",
		"a.example.com#f":                        "! the host's name only",
		"user@a.example.com":                     "! contains a user",
		"user:pass@a.example.com":                "! contains a user",
		"a.example.com\x00":                      "! a space or a control character",
		"a.example.com\x00.b.com":                "! a space or a control character",
		"a.example.com b.com":                    "! a space or a control character",
		"a.example.com\r\nb.com":                 "! a space or a control character",
		"bücher.example":                         "! punycode",
		"g\u0130thub.com":                        "! punycode", // whose lower case is an ASCII i
		"\u212aey.example.com":                   "! punycode",
		"a.example.com。":                         "! punycode",
		"localhost":                              "! is a single word",
		"com":                                    "! is a single word",
		"*":                                      "! every host",
		"*:443":                                  "! has a *",
		"*.com":                                  "! many owners",
		"*.co.uk":                                "! many owners",
		"*.github.io":                            "! many owners",
		"*.GITHUB.io.:443":                       "! many owners",
		"*.anything.ck":                          "! many owners",
		"*.ck":                                   "! many owners",
		"*.kawasaki.jp":                          "! many owners",
		"*.compute.amazonaws.com":                "! many owners",
		"*.":                                     "! is not a host's name",
		"*.*.example.com":                        "! has a *",
		"a.*.example.com":                        "! has a *",
		"*a.example.com":                         "! has a *",
		"a..example.com":                         "! is not a host's name",
		".example.com":                           "! is not a host's name",
		"a.example.com..":                        "! is not a host's name",
		"-a.example.com":                         "! is not a host's name",
		"a%2eexample.com":                        "! is not a host's name",
		"a,b.example.com":                        "! is not a host's name",
		long:                                     "! is longer than",
		long + long:                              "! is longer than",
		"a.example.com:":                         "! no valid port",
		"a.example.com:0":                        "! no valid port",
		"a.example.com:65536":                    "! no valid port",
		"a.example.com:0443":                     "! no valid port",
		"a.example.com:+443":                     "! no valid port",
		"a.example.com:443:80":                   "! no valid port",
		"a.example.com:https":                    "! no valid port",
		"a.example.com:*":                        "! no valid port",
		strings.Repeat("a", 64) + ".example.com": "! is not a host's name",
	} {
		rules, err := e.Check([]string{text})
		got := strings.Join(rules, " ")
		if err != nil {
			got = "! " + err.Error()
		}
		refusal, refused := strings.CutPrefix(want, "! ")
		if refused != (err != nil) || refused && !strings.Contains(got, refusal) || !refused && got != want {
			t.Errorf("%q: %s; want %s", text, got, want)
		}
		if refused && strings.ContainsFunc(got, func(c rune) bool { return c < ' ' }) {
			t.Errorf("%q: the message has control characters", text)
		}
	}
	if rules, err := e.Check([]string{"a.example.com:443", "A.example.com", "a.example.com"}); err != nil || len(rules) != 2 {
		t.Errorf("duplicates: %v, %v", rules, err)
	}
}

func TestCeiling(t *testing.T) {
	e := newEgress(t, Config{Ceiling: []string{"api.example.com", "*.example.org:443", "db.example.com:5432"}})
	for text, want := range map[string]string{
		"api.example.com":              "api.example.com:443 api.example.com:80",
		"a.b.example.org":              "a.b.example.org:443", // the port that is allowed
		"*.example.org":                "*.example.org:443",
		"*.b.example.org":              "*.b.example.org:443",
		"db.example.com:5432":          "db.example.com:5432",
		"db.example.com":               "",
		"*.example.com":                "",
		"example.org":                  "",
		"evilexample.org":              "",
		"*.api.example.com":            "",
		"x.api.example.com":            "",
		"api.example.com:22":           "",
		"a.example.org:80":             "",
		"api.example.com.evil.example": "",
	} {
		rules, err := e.Check([]string{text})
		if got := strings.Join(rules, " "); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "network.allow") {
			t.Errorf("%s: %v does not name network.allow", text, err)
		}
	}
	for host, want := range map[string]string{
		"api.example.com:80":   "api.example.com",
		"a.example.org:0":      "a.example.org",
		"a.example.org:443":    "a.example.org",
		"a.example.org:80":     "none: ask the operator to add a.example.org:80 to network.allow",
		"evil.example.com:80":  "none: ask the operator to add evil.example.com to network.allow",
		"api.example.com:8443": "none: ask the operator to add api.example.com:8443 to network.allow",
	} {
		to, _ := parseTarget(host)
		if got := e.notAllowed(to); got.rule != want {
			t.Errorf("%s: %+v, want %s", host, got, want)
		}
	}
	// Wildcards end at public suffixes, and the ceiling's cover no more.
	clouds := newEgress(t, Config{Ceiling: []string{"*.amazonaws.com", "*.windows.net:443"}})
	for text, want := range map[string]string{
		"sts.amazonaws.com":                 "sts.amazonaws.com:443 sts.amazonaws.com:80",
		"*.amazonaws.com:443":               "*.amazonaws.com:443",
		"*.eu-west-1.amazonaws.com:443":     "*.eu-west-1.amazonaws.com:443",
		"bucket.s3.amazonaws.com":           "",
		"s3.amazonaws.com":                  "", // which serves buckets below its paths
		"*.bucket.s3.amazonaws.com":         "",
		"b.s3.eu-west-1.amazonaws.com":      "",
		"account.blob.core.windows.net":     "",
		"x.y.account.blob.core.windows.net": "",
		"login.windows.net":                 "login.windows.net:443",
	} {
		rules, err := clouds.Check([]string{text})
		if got := strings.Join(rules, " "); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	if got := clouds.notAllowed(target{"bucket.s3.amazonaws.com", 443}); got.rule != "none: ask the operator to add bucket.s3.amazonaws.com to network.allow" {
		t.Errorf("%+v", got)
	}
	none := newEgress(t, Config{Ceiling: []string{}})
	if _, err := none.Check([]string{"api.example.com"}); err == nil || !strings.Contains(err.Error(), "It allows: none") {
		t.Errorf("an empty ceiling allows hosts: %v", err)
	}
	trail, _ := audit.Open(filepath.Join(t.TempDir(), "a"))
	if _, err := New(Config{Ceiling: []string{"10.0.0.1"}, Audit: trail}); err == nil {
		t.Error("an address is in the ceiling")
	}
}

// TestGrant: the environment names the run by a token, which is a secret.
func TestGrant(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	records, err := audit.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	e := newEgress(t, Config{Audit: records})
	env, secrets := e.Grant("ann", "run_1", "sb", []string{"a.example.com:443"})
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		if want := "http://run:" + secrets[0] + "@127.0.0.1:8099"; env[name] != want {
			t.Errorf("%s=%s, want %s", name, env[name], want)
		}
	}
	direct := strings.Split(env["NO_PROXY"], ",")
	for _, name := range []string{"localhost", "127.0.0.1", "::1", "0.0.0.0", "sandbox"} { // where code's own servers are
		if !slices.Contains(direct, name) {
			t.Errorf("NO_PROXY=%s lacks %s", env["NO_PROXY"], name)
		}
	}
	if len(secrets[0]) < 26 {
		t.Errorf("%v %v", env, secrets)
	}
	if env, secrets := e.Grant("ann", "run_2", "sb", nil); env != nil || secrets != nil {
		t.Errorf("a run without hosts: %v %v", env, secrets)
	}
	_, again := e.Grant("ann", "run_1", "sb2", []string{"a.example.com:443"})
	if again[0] == secrets[0] || e.byToken[secrets[0]] != nil {
		t.Error("an old token stays valid")
	}
	p := refuse(http.StatusForbidden, codeNotAllowed, "No.").because("it is a test")
	for range 100 {
		e.block([]*run{e.runs["run_1"]}, again[0]+strings.Repeat("x", len(e.runs["run_1"].blocked)), p)
	}
	if n := len(e.Release("run_1")); n != maxBlocked {
		t.Errorf("%d hosts are noted", n)
	}
	trail, err := os.ReadFile(file)
	if want := `"reason":"36 further refusals, of hosts that are not listed"`; err != nil || !strings.Contains(string(trail), want) {
		t.Errorf("%v, %s", err, trail)
	}
	e.Release("run_2")
	e.Release("never")
	if len(e.runs)+len(e.byToken)+len(e.bySandbox) != 0 {
		t.Error("something is left of ended runs")
	}
}

// TestSuffix: a wildcard covers no name below a public suffix that it contains. The rule in the
// result is one that does.
func TestSuffix(t *testing.T) {
	e := newEgress(t, Config{})
	for _, allowed := range []struct{ hosts, may, mayNot string }{
		{"*.amazonaws.com", "sts.amazonaws.com:443", "bucket.s3.amazonaws.com:443"},
		{"*.eu-west-1.amazonaws.com", "sqs.eu-west-1.amazonaws.com:443", "b.s3.eu-west-1.amazonaws.com:443"},
		{"*.bucket.s3.amazonaws.com", "a.b.bucket.s3.amazonaws.com:443", "other.s3.amazonaws.com:443"},
		{"*.windows.net:5432", "db.database.windows.net:5432", "a.blob.core.windows.net:5432"},
	} {
		rules, err := e.Check([]string{allowed.hosts})
		if err != nil {
			t.Fatal(err)
		}
		e.Grant("ann", "run_1", "sb", rules)
		runs, _, p := e.admit(e.inSandbox("sb"), allowed.may)
		if p != nil {
			t.Fatalf("%s: %+v", allowed.may, p)
		}
		runs[0].leave()
		_, _, p = e.admit(e.inSandbox("sb"), allowed.mayNot)
		if p == nil || p.code != codeNotAllowed {
			t.Fatalf("%s with %s: %+v", allowed.mayNot, allowed.hosts, p)
		}
		rules, err = e.Check([]string{p.rule})
		e.Grant("ann", "run_1", "sb", rules)
		runs, _, problem := e.admit(e.inSandbox("sb"), allowed.mayNot)
		if err != nil || problem != nil {
			t.Fatalf("%s with %s: %v, %v", allowed.mayNot, p.rule, err, problem)
		}
		runs[0].leave()
		e.Release("run_1")
	}
}

// TestReleased: a connection that comes as its run ends was not denied, and changes neither the
// result nor the audit trail.
func TestReleased(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	trail, err := audit.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer trail.Close()
	e := newEgress(t, Config{Audit: trail})
	e.Grant("ann", "run_1", "sb", []string{"a.example.com:443"})
	late := e.inSandbox("sb")
	_, _, _ = e.admit(late, "b.example.com:443")
	blocked := e.Release("run_1")
	before, _ := os.ReadFile(file)
	for host, want := range map[string]string{"a.example.com:443": codeEnded, "b.example.com:443": codeNotAllowed, "c.example.com:443": codeNotAllowed} {
		if _, _, p := e.admit(late, host); p == nil || p.code != want {
			t.Errorf("%s: %+v, want %s", host, p, want)
		}
	}
	if len(blocked) != 1 || blocked[0] != (Blocked{"b.example.com", 1, "b.example.com"}) {
		t.Errorf("%+v", blocked)
	}
	if after, _ := os.ReadFile(file); len(before) == 0 || string(after) != string(before) {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
}

// FuzzNames: what is accepted has one form, is a name, and means the same when it is read again.
func FuzzNames(f *testing.F) {
	for _, text := range []string{"api.example.com", "*.Example.org.:443", "127.0.0.1", "[::1]:80", "0x7f.1", "a..b", "bücher.example", "\u212aey.example.com", "a.b:65536", "x.y\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := parseEntry(text)
		if (err == nil) != (len(rules) > 0) {
			t.Fatalf("%q: %v, %v", text, rules, err)
		}
		for _, r := range rules {
			again, err := parseEntry(r.String())
			if err != nil || len(again) != 1 || again[0] != r {
				t.Errorf("%q: %s, read again: %v, %v", text, r, again, err)
			}
			_, isIP := netip.ParseAddr(r.name)
			if isIP == nil || r.port == 0 || r.name != strings.ToLower(r.name) || strings.Trim(r.name, ".*:[]/@ ") != r.name || !strings.Contains(r.name, ".") {
				t.Errorf("%q means %s", text, r)
			}
			if to, err := parseTarget(r.address()); !r.below && (err != nil || to != r.target) {
				t.Errorf("%q as a target: %v, %v", text, to, err)
			}
		}
	})
}
