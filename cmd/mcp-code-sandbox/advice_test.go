package main

import (
	"strings"
	"testing"
	"time"
)

// TestSpacesInLists: a list may have spaces around its commas.
func TestSpacesInLists(t *testing.T) {
	s, err := parse(t, []string{"--allowed-hosts= a.example , b.example"}, map[string]string{
		"HOME": "/home/u", "SANDBOX_TRUSTED_PROXIES": "127.0.0.1, ::1", "SANDBOX_IMAGES": "runner-python, runner-typescript", "SANDBOX_NETWORK_DENY": " 9.9.9.9 ",
	})
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		strings.Join(s.AllowedHosts, "|"): "a.example|b.example", strings.Join(s.TrustedProxies, "|"): "127.0.0.1|::1",
		strings.Join(s.Images, "|"): "runner-python|runner-typescript", strings.Join(s.NetworkDeny, "|"): "9.9.9.9",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1TB": 1 << 40, "1.5tib": 3 << 39, "2t": 2 << 40, "512m": 512 << 20, "7": 7, "100000TB": 100000 << 40} {
		var b byteSize
		if err := b.UnmarshalText([]byte(text)); err != nil || int64(b) != want {
			t.Errorf("%s: %d, %v", text, b, err)
		}
	}
	if got := byteSize(3 << 40).String(); got != "3TB" {
		t.Error(got)
	}
}

// TestWarnings: valid settings that are probably a mistake cause a warning, and no others do.
func TestWarnings(t *testing.T) {
	for _, tc := range []struct{ env, want string }{
		{"", ""},
		{"SANDBOX_TRUSTED_PROXIES=127.0.0.1,10.0.0.0/8,fd00::/16", ""},
		{"SANDBOX_TRUSTED_PROXIES=0.0.0.0/1", "SANDBOX_TRUSTED_PROXIES: 0.0.0.0/1 trusts much of the internet"},
		{"SANDBOX_TRUSTED_PROXIES=2000::/3", "SANDBOX_TRUSTED_PROXIES: 2000::/3 trusts much"},
		{"SANDBOX_NETWORK_DENY=0.0.0.0/0", "SANDBOX_NETWORK_DENY: 0.0.0.0/0 closes everything"},
		{"SANDBOX_CALLER_BYTES=1GB", "SANDBOX_CALLER_BYTES: 1GB is less than one session may hold (SANDBOX_WORKSPACE_BYTES is 2GB)"},
		{"SANDBOX_CALLER_FILES=2000", "SANDBOX_CALLER_FILES: 2000 is less than one session may hold (SANDBOX_WORKSPACE_FILES is 50000)"},
		{"SANDBOX_CALLER_BYTES=0 SANDBOX_CALLER_FILES=0", ""},
		{"SANDBOX_EXEC_TIMEOUT_S=900", ""}, // the maximum follows
		{"SANDBOX_MAX_EXEC_TIMEOUT_S=3", "SANDBOX_MAX_EXEC_TIMEOUT_S: 3s is less than SANDBOX_EXEC_TIMEOUT_S, so runs may take 1m0s"},
		{"SANDBOX_CALLER_BYTE=1GB", "SANDBOX_CALLER_BYTE: unknown setting, ignored; did you mean SANDBOX_CALLER_BYTES?"},
		{"SANDBOX_EXEC_TIMEOUT=5", "did you mean SANDBOX_EXEC_TIMEOUT_S?"},
		{"SANDBOX_MAX_SESIONS=5", "did you mean SANDBOX_MAX_SESSIONS?"},
		{"SANDBOX_PORT=1", "SANDBOX_PORT: unknown setting, ignored; unset it"},
		{"SANDBOX_PORT=", ""},
		{"SANDBOX_TEST_RUNNERS=/x", ""},
		{"SANDBOX_GITHUB_KEY=x SANDBOX_CONFIG=/etc/x.json", ""}, // the file may refer to it
		{"SANDBOX_CALER_BYTES=1GB SANDBOX_CONFIG=/etc/x.json", "did you mean SANDBOX_CALLER_BYTES?"},
		{"MCP_API_TOKEN=a", "MCP_API_TOKEN: should have at least 16 bytes"},
	} {
		env := map[string]string{"HOME": "/home/u"}
		for _, kv := range strings.Fields(tc.env) {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		s, err := parse(t, nil, env)
		if err != nil {
			t.Errorf("%s: %v", tc.env, err)
			continue
		}
		var got []string
		for _, w := range s.warnings(env) {
			got = append(got, w.name+": "+w.problem+"; "+w.fix)
		}
		if text := strings.Join(got, "\n"); (text == "") != (tc.want == "") || len(got) > 1 || !strings.Contains(text, tc.want) {
			t.Errorf("%s: %q, want %q", tc.env, text, tc.want)
		}
	}
	s, err := parse(t, []string{"--exec-timeout=15m"}, map[string]string{"HOME": "/home/u"})
	if err != nil || s.maxExecTimeout() != 15*time.Minute {
		t.Errorf("%v, %v", s.maxExecTimeout(), err)
	}
}
