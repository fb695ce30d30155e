package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/tools"
	"mcp-code-sandbox/internal/version"
)

// banner prints how to connect. It shows a generated token at a terminal only: elsewhere a log
// would keep it, so banner names its file. It never shows a token that the operator chose.
func banner(w io.Writer, a *app, base string, terminal bool) {
	token, page, shown, inJSON := "$MCP_API_TOKEN", base+"/", "the one in MCP_API_TOKEN", "$MCP_API_TOKEN"
	if a.keys.tokenIsOurs {
		file := filepath.Join(a.settings.Root, "keys", "api-token")
		token, shown, inJSON = "$(cat '"+file+"')", "in the file "+file, "TOKEN"
		if terminal {
			token = a.keys.token.Reveal()
			page += "#token=" + token
			shown, inJSON = token+"  (kept in "+file+")", token
		}
	}
	more, people, with := "", "", ""
	if v := a.services; v != nil {
		if v.users {
			shown += "; it is yours as the operator, others log in"
			people = "\n  Others, without a token (Claude Code opens a browser to log in):\n    claude mcp add --transport http sandbox " + base + "/mcp\n"
			with = ", for yourself"
		}
		if len(v.names) > 0 {
			more = "\n  Services      " + strings.Join(v.names, ", ")
		}
		if v.login != nil {
			more += "\n  Connections   " + base + "/connections"
		}
	}
	if a.packages != nil {
		more += "\n  Packages      " + packagesLine(a.packages.Indexes(), a.environments.runners())
	}
	if mode := a.settings.Network; mode != networkFull {
		more += "\n  Network       " + mode
	}
	wanted, err := wantedTools(a.settings.Tools)
	if err == nil && len((tools.Options{Tools: wanted}).Offered()) == len((tools.Options{}).Offered()) {
		more += "\n  Tools         all; for chat clients, SANDBOX_TOOLS=run offers fewer and is easier on the model"
	}
	languages := strings.Join(a.environments.runners().Names(), ", ")
	if languages == "" {
		languages = "none yet: " + a.isolation.installFix(a.settings)
	}
	fmt.Fprintf(w, `
MCP Code Sandbox %s

  Page          %s
  MCP endpoint  %s/mcp
  Token         %s
  Languages     %s
  Data          %s
  Sessions      %s%s
%s
  Claude Code%s:
    claude mcp add --transport http sandbox %s/mcp --header "Authorization: Bearer %s"

  Cursor and others%s, as JSON:
    %s

`, version.String(), page, base, shown, languages, a.settings.Root, sessionsLine(a), more, people, with, base, token, with, clientJSON(base, inJSON))
	if note := interfacesNote(a.settings); note != "" {
		fmt.Fprintf(w, "  %s\n\n", note)
	}
}

// interfacesNote explains what clients on other machines need when the server listens on every
// interface. Otherwise it is empty.
func interfacesNote(s *settings) string {
	host, _, err := net.SplitHostPort(s.listenAddr())
	if ip, perr := netip.ParseAddr(host); err != nil || s.PublicBaseURL != "" || host != "" && (perr != nil || !ip.IsUnspecified()) {
		return ""
	}
	if len(s.AllowedHosts) > 0 {
		return "Listening on every interface. File links name localhost: set PUBLIC_BASE_URL for links that work from elsewhere."
	}
	return "Listening on every interface. Calls from other machines are refused (403) until PUBLIC_BASE_URL (for file links, too)\n" +
		"  or SANDBOX_ALLOWED_HOSTS names the host by which they reach this server."
}

// isTerminal reports whether a person sees what is written to w, and nothing keeps it.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}

// sessionsLine says how many sessions the settings allow and how many would fit on this machine.
func sessionsLine(a *app) string {
	line := fmt.Sprintf("%d at a time", a.settings.MaxSessions)
	if !a.isolation.isLocal(a.settings) {
		return line
	}
	if n, _ := doctor.System().SuggestSessions(a.isolation.sessionCost(a.settings)); n > 0 {
		line += fmt.Sprintf("; SANDBOX_MAX_SESSIONS=%d would suit this machine if most of them are idle (a busy one may take %s: SANDBOX_MEMORY_LIMIT)",
			n, a.settings.MemoryLimit)
	}
	return line
}

// packagesLine lists the kinds of packages, and says which no environment can install yet.
func packagesLine(kinds []string, set runner.Set) string {
	unused := unusedKinds(kinds, set)
	line := strings.Join(slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return slices.Contains(unused, kind) }), ", ")
	if len(unused) > 0 {
		line = strings.TrimSpace(line + " (" + strings.Join(unused, ", ") + ": run mcp-code-sandbox runners install first)")
	}
	return line
}

// clientJSON returns the configuration format of most clients.
func clientJSON(base, token string) string {
	type server struct {
		Type    string            `json:"type"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
	}
	headers := map[string]string{"Authorization": "Bearer " + token}
	config := map[string]map[string]server{"mcpServers": {"sandbox": {"http", base + "/mcp", headers}}}
	text, err := json.MarshalIndent(config, "    ", "  ")
	if err != nil {
		panic(err) // strings always encode
	}
	return string(text)
}
