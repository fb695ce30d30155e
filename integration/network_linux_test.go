package integration

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/egress/egresstest"
)

// blockedResult is what a run's result says about hosts.
type blockedResult struct {
	runResult
	Blocked []struct {
		Host, Rule string
		Times      int
	}
}

func (s *server) runHosts(t *testing.T, language, code string, hosts any) (r blockedResult) {
	t.Helper()
	res := s.call(t, "run_code", map[string]any{"conversationId": "net", "language": language, "code": code, "hosts": hosts, "environment": map[string]string{
		"SSL_CERT_FILE": "/data/ca.pem", "CURL_CA_BUNDLE": "/data/ca.pem", "REQUESTS_CA_BUNDLE": "/data/ca.pem", "GIT_SSL_CAINFO": "/data/ca.pem", "NODE_EXTRA_CA_CERTS": "/data/ca.pem",
	}})
	if res.Error != nil || len(res.Content) != 1 {
		t.Fatalf("%+v", res)
	}
	if err := json.Unmarshal([]byte(res.Content[0].Text), &r); err != nil {
		t.Fatalf("%v in %s", err, res.Content[0].Text)
	}
	return r
}

// enterHosts runs the test in a world of its own, with a server that has this section network. Both
// have the variables env. Outside it returns nil.
func enterHosts(t *testing.T, network string, env ...string) (*egresstest.World, *server) {
	t.Helper()
	w := egresstest.Enter(t, append(env, envBuilt+"="+binary, "SANDBOX_TEST_RUNNERS="+runners)...)
	if w == nil {
		return nil, nil
	}
	w.UseResolver(t)
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(`{"network": `+network+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, append(env, "SANDBOX_NETWORK=list", "SANDBOX_CONFIG="+config)...)
	if r := s.run(t, "net", "python", "open('/data/ca.pem', 'w').write('''"+string(w.CAPEM)+"''')"); !r.Success {
		t.Fatalf("%+v", r)
	}
	return w, s
}

// rawTLS connects by name, as a client does that knows no proxy.
const rawTLS = `import socket, ssl
context = ssl.create_default_context(cafile='/data/ca.pem')
with context.wrap_socket(socket.create_connection(('api.example.com', 443)), server_hostname='api.example.com') as s:
    s.sendall(b'GET /t HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n')
    print(b''.join(iter(lambda: s.recv(4096), b'')).decode())
`

// TestServerItself: a name for this host leads to what the operator opened there, and not to the
// server.
func TestServerItself(t *testing.T) {
	w, s := enterHosts(t, `{}`, "SANDBOX_NETWORK_ALLOW=127.0.0.0/8")
	if w == nil {
		return
	}
	w.Name("self.example.com", "127.0.0.1")
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("opened")) }))
	defer front.Close()
	for base, want := range map[string]string{front.URL: "opened", s.URL: "SANDBOX_NETWORK_ALLOW"} {
		host := "self.example.com" + base[strings.LastIndexByte(base, ':'):]
		code := "import urllib.request, urllib.error\ntry:\n    r = urllib.request.urlopen('http://" + host + "/healthz')\nexcept urllib.error.HTTPError as e:\n    r = e\nprint(r.read().decode())"
		if r := s.runHosts(t, "python", code, []string{host}); !strings.Contains(r.Output, want) {
			t.Errorf("%s: %+v", host, r)
		}
	}
}

// TestHosts: code without a network reaches the hosts that its run names, with the usual clients,
// and no others.
func TestHosts(t *testing.T) {
	w, s := enterHosts(t, `{"allow": ["api.example.com", "*.example.org"], "uploadBytes": 1000000}`)
	if w == nil {
		return
	}
	for _, name := range []string{"api.example.com", "evil.example.com", "up.example.org"} {
		w.Name(name, egresstest.Public)
	}
	w.Name("inside.example.org", egresstest.Private)

	hosts := []string{"api.example.com", "*.example.org"}
	for name, tt := range map[string]struct{ language, code, want string }{
		"curl":        {"shell", "curl -sS https://api.example.com/c", "GET /c host=api.example.com body=0"},
		"plain":       {"shell", "curl -sS -d abc http://api.example.com/p", "POST /p host=api.example.com body=3"},
		"requests":    {"python", "import requests\nprint(requests.get('https://api.example.com/r').text)", "GET /r host=api.example.com"},
		"urllib":      {"python", "import urllib.request\nprint(urllib.request.urlopen('https://up.example.org/u').read().decode())", "GET /u host=up.example.org"},
		"fetch":       {"javascript", "console.log(await (await fetch('https://api.example.com/f')).text())", "GET /f host=api.example.com"},
		"raw TLS":     {"python", rawTLS, "host=api.example.com"},
		"git":         {"shell", "GIT_CURL_VERBOSE=0 git ls-remote https://api.example.com/x.git 2>&1 || true", "not valid: is this a git repository?"},
		"download":    {"shell", "curl -sS https://api.example.com/bytes/20000000 | wc -c", "20000000"},
		"not a host":  {"shell", "curl -sS https://evil.example.com/ 2>&1 || true", "403"},
		"inside":      {"shell", "curl -sS http://inside.example.org/ 2>&1 || true", "SANDBOX_NETWORK_ALLOW"},
		"upload":      {"shell", "head -c 2000000 /dev/zero | curl -sS -T - https://up.example.org/ 2>&1 || true", "curl:"},
		"no environ":  {"shell", "env -u HTTPS_PROXY -u https_proxy curl -sS --max-time 5 https://203.0.114.1/ 2>&1 || true", "curl:"},
		"no password": {"shell", "curl -sS -x http://127.0.0.1:8099 https://api.example.com/n", "GET /n host=api.example.com"},
		"bad token":   {"shell", "curl -sS -x http://x:y@127.0.0.1:8099 https://api.example.com/n 2>&1 || true", "407"},
		"hidden":      {"shell", "echo $HTTPS_PROXY; curl -sSv https://api.example.com/ 2>&1 | grep -i proxy-auth", "Basic [execution token]"},
	} {
		if onDocker() && tt.language == "shell" {
			continue // its image has neither curl nor git
		}
		r := s.runHosts(t, tt.language, tt.code, hosts)
		if !strings.Contains(r.Output, tt.want) {
			t.Errorf("%s: %+v", name, r)
		}
		rules := map[string]string{}
		for _, b := range r.Blocked {
			rules[b.Host] = b.Rule
		}
		wantBlocked := map[string][2]string{
			"not a host": {"evil.example.com", "ask the operator to add evil.example.com to network.allow"},
			"inside":     {"inside.example.org", "SANDBOX_NETWORK_ALLOW"},
			"upload":     {"up.example.org", "upload budget"},
			"bad token":  {"api.example.com", "the token for the proxy"},
		}[name]
		if host, rule := wantBlocked[0], wantBlocked[1]; host == "" && len(rules) > 0 || !strings.Contains(rules[host], rule) {
			t.Errorf("%s: blocked %v", name, rules)
		}
	}
	// The hosts are those of a cell, not of its interpreter.
	cell := func(code string, hosts ...string) string {
		return s.call(t, "run", map[string]any{"session": "net", "env": "python", "code": code, "hosts": hosts}).Content[0].Text
	}
	if got := cell("kept = 7\n"+rawTLS, "api.example.com"); !strings.Contains(got, "host=api.example.com") {
		t.Errorf("a cell with hosts: %s", got)
	}
	if got := cell("print(kept)\n" + rawTLS); !strings.Contains(got, "7") || !strings.Contains(got, "not known") || !strings.Contains(got, `"rule": "api.example.com"`) {
		t.Errorf("the next cell, without: %s", got)
	}
	if n := w.Queries()["evil.example.com"]; n > 0 {
		t.Errorf("a name that is not allowed was resolved %d times", n)
	}

	// A run that does not name a host does not reach it, in the same interpreter. The result says
	// how to.
	const fetch = "import requests\nprint(requests.get('https://api.example.com/r').text)"
	if r := s.runHosts(t, "python", fetch, []string{"up.example.org"}); r.Success || len(r.Blocked) != 1 || r.Blocked[0].Rule != "api.example.com" ||
		!strings.Contains(r.Hint, `hosts: ["api.example.com"]`) {
		t.Errorf("%+v", r)
	}
	for want, args := range map[string]map[string]any{
		"SANDBOX_NETWORK=list": {"network": true}, "is an IP address": {"hosts": []string{"203.0.114.1"}}, "network.allow": {"hosts": []string{"evil.example.com"}},
	} {
		args["conversationId"], args["language"], args["code"] = "net", "shell", "true"
		if res := s.call(t, "run_code", args); !res.IsError || !strings.Contains(res.Content[0].Text, want) {
			t.Errorf("%v: %+v", args, res)
		}
	}
	if r := s.call(t, "run_code", map[string]any{"conversationId": "net", "language": "python", "code": "import requests\nprint(requests.get('https://api.example.com/l', verify='/data/ca.pem').text)", "network": []string{"api.example.com"}}); r.IsError ||
		!strings.Contains(r.Content[0].Text, "host=api.example.com") {
		t.Errorf("hosts in network: %+v", r)
	}
	trail, err := os.ReadFile(filepath.Join(s.Root, "audit", "proxy.jsonl"))
	if err != nil || !strings.Contains(string(trail), `"room":"egress","host":"up.example.org:443"`) {
		t.Errorf("%v\n%s", err, trail)
	}
}
