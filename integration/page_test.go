//go:build linux

package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/logging/logtest"
	"mcp-code-sandbox/internal/oauth/oauthtest"
)

// TestPage runs the stories of page/stories.mjs: the page in a real browser, on the real server and
// jail. Screenshots go to .cache/screenshots. PAGE_STORY selects the stories whose name contains
// it.
func TestPage(t *testing.T) {
	browser := lookFor("chromium", "chromium-browser", "google-chrome")
	if browser == "" {
		skip(t, "no Chromium: run make test")
	}
	dir, err := filepath.Abs("page")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "playwright-core")); err != nil {
		skip(t, "no playwright-core in %s: run make test", dir)
	}
	screenshots := filepath.Join(dir, "..", "..", ".cache", "screenshots")
	if err := os.MkdirAll(screenshots, 0o755); err != nil {
		t.Fatal(err)
	}
	settings := append(pageServices(t), "SANDBOX_MAX_SESSIONS=50")
	s := serve(t, settings...)
	settings = append(settings, "SANDBOX_ROOT="+s.Root, "MCP_HTTP_ADDR="+strings.TrimPrefix(s.URL, "http://"))
	config, err := json.Marshal(map[string]string{
		"url": s.URL, "token": s.Token, "browser": browser, "screenshots": screenshots, "only": os.Getenv("PAGE_STORY"),
		"narrow": serve(t, "SANDBOX_TOOLS=run_code").URL,
	})
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute) // many times what it takes
	defer cancel()
	cmd := exec.CommandContext(ctx, node(t), filepath.Join(dir, "stories.mjs"), string(config))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(baseEnv(), "HOME="+t.TempDir())
	log := &logtest.Buffer{}
	cmd.Stderr = log
	stdin, stdout := startPiped(t, cmd)
	told := 0
	for sc := bufio.NewScanner(stdout); sc.Scan(); {
		var event struct {
			Event, Name, Error string
			MS                 int
		}
		if err := json.Unmarshal(sc.Bytes(), &event); err != nil {
			t.Errorf("the stories print %q", sc.Text())
			continue
		}
		switch event.Event {
		case "stop":
			s.stop(t)
			fmt.Fprintln(stdin)
		case "start":
			s = serve(t, settings...)
			fmt.Fprintln(stdin)
		case "story":
			told++
			t.Run(event.Name, func(t *testing.T) {
				t.Logf("%d ms", event.MS)
				if event.Error != "" {
					t.Error(event.Error)
				}
			})
		}
	}
	if err := cmd.Wait(); err != nil || told == 0 {
		t.Errorf("%d stories were told: %v\n%s", told, err, log)
	}
}

// pageServices configures two services: one with an operator's key, and one that nobody has
// connected.
func pageServices(t *testing.T) []string {
	t.Helper()
	accounts := oauthtest.NewService(t)
	api := newPretendAPI(t, accounts)
	text := fmt.Sprintf(`{"mcpServers": {
		"datadog": {
			"requiresUserToken": true,
			"userAuthentication": {"type": "oauth", "displayName": "Datadog", "clientId": %q, "clientSecret": {"$env": "DATADOG_SECRET"},
				"authorizationUrl": %q, "tokenUrl": %q, "scopes": ["metrics_read"]},
			"proxy": {"enabled": true, "baseURL": %q, "defaultAllowedPaths": ["/api/v1/**"], "allowPrivateAddresses": ["127.0.0.1"]}
		},
		"status-page": {
			"userAuthentication": {"type": "header", "displayName": "Status page", "name": "X-Api-Key", "value": {"$env": "STATUS_KEY"}},
			"proxy": {"enabled": true, "baseURL": %q, "defaultAllowedPaths": ["/api/v1/**"], "allowPrivateAddresses": ["127.0.0.1"]}
		}
	}}`, accounts.ClientID, accounts.AuthorizationURL(), accounts.TokenURL(), api.URL, api.URL)
	path := filepath.Join(t.TempDir(), "services.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"SANDBOX_CONFIG=" + path, "STATUS_KEY=" + staticKey, "DATADOG_SECRET=" + accounts.ClientSecret}
}

// lookFor returns the first program that exists.
func lookFor(names ...string) string {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
