package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/oauth"
	"mcp-code-sandbox/internal/secret"
)

// TestBannerAtTerminal: a person is shown the token, with an address that carries it.
func TestBannerAtTerminal(t *testing.T) {
	a := &app{settings: &settings{Root: "/root/of/it"}, keys: keys{token: secret.New("made-by-us"), tokenIsOurs: true}, isolation: isolation{backend: backendNamed(backendJail)}}
	for terminal, want := range map[bool]string{true: "Page          http://h:1/#token=made-by-us\n", false: "Token         in the file /root/of/it/keys/api-token\n"} {
		var out strings.Builder
		banner(&out, a, "http://h:1", terminal)
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "made-by-us") != terminal {
			t.Errorf("terminal %t:\n%s", terminal, out.String())
		}
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if isTerminal(file) || isTerminal(w) || isTerminal(new(strings.Builder)) {
		t.Error("a file, a pipe or memory is taken for a terminal")
	}
	if tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0); err == nil {
		defer tty.Close()
		if !isTerminal(tty) {
			t.Error("a terminal is not recognised")
		}
	}
}

// TestBannerWithLogins: people log in by themselves; the token is presented as the operator's own.
func TestBannerWithLogins(t *testing.T) {
	const invite = "    claude mcp add --transport http sandbox http://h:1/mcp\n"
	a := &app{settings: &settings{}, keys: keys{token: secret.New("made-by-us"), tokenIsOurs: true}, isolation: isolation{backend: backendNamed(backendJail)}}
	show := func() string {
		var out strings.Builder
		banner(&out, a, "http://h:1", false)
		return out.String()
	}
	if got := show(); strings.Contains(got, invite) || strings.Contains(got, "log in") || strings.Contains(got, "yourself") {
		t.Errorf("without logins:\n%s", got)
	}
	a.services = &services{users: true, login: new(oauth.Server)}
	got := show()
	for _, want := range []string{invite, "it is yours as the operator, others log in", "Claude Code, for yourself:", "Cursor and others, for yourself, as JSON:", "Connections   http://h:1/connections"} {
		if !strings.Contains(got, want) {
			t.Errorf("with logins, no %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "Services") {
		t.Errorf("an empty line of services:\n%s", got)
	}
	if a.services.names = []string{"github", "jira"}; !strings.Contains(show(), "Services      github, jira\n") {
		t.Errorf("no services:\n%s", show())
	}
}

func TestInterfacesNote(t *testing.T) {
	const refused = "refused (403) until PUBLIC_BASE_URL"
	for _, tc := range []struct {
		s    settings
		want string
	}{
		{settings{HTTPAddr: ":8080"}, refused}, {settings{HTTPAddr: "0.0.0.0:8080"}, refused}, {settings{HTTPAddr: "[::]:8080"}, refused},
		{settings{HTTPAddr: "0.0.0.0:8080", AllowedHosts: []string{"s.example"}}, "File links name localhost: set PUBLIC_BASE_URL"},
		{settings{HTTPAddr: "0.0.0.0:8080", PublicBaseURL: "https://s.example"}, ""},
		{settings{HTTPAddr: "127.0.0.1:8080"}, ""}, {settings{HTTPAddr: "192.0.2.1:8080"}, ""}, {settings{HTTPAddr: "localhost:8080"}, ""}, {settings{HTTPPort: 8080}, ""},
	} {
		if got := interfacesNote(&tc.s); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.s.listenAddr(), got, tc.want)
		}
	}
}
