//go:build linux

package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const modelAnswer = "The revenue is 1234567.89."

// clientCalls are the calls that each framework makes in a session.
func clientCalls(session string) []modelCall {
	run := func(code string) modelCall {
		return modelCall{"run", map[string]any{"env": "python", "session": session, "code": code}}
	}
	return []modelCall{
		run("import pandas as pd\npd.DataFrame({'rev': [1234567.89, 99999999.5]})"),
		run("import matplotlib.pyplot as plt\nprint('plotting')\nplt.plot([1, 2])\nplt.show()"),
		run("n = open('/data/report.csv', 'w').write('rev\\n1234567.89\\n')\nprint('written')"),
		run("x = 1"),
		run("1/0"),
		{"read_artifact", map[string]any{"session_id": session, "path": "missing.csv"}},
	}
}

// quietCall is silent for longer than the 5 s after which HTTP clients without a timeout of their
// own give up.
var quietCall = modelCall{"run", map[string]any{"env": "python", "session": "quiet", "code": "import time\ntime.sleep(7)\nprint('awake')"}}

// heavyCall shows an image of several MB. The Python SDK 2.x refuses an event of more than 1 MiB.
var heavyCall = modelCall{"run", map[string]any{"env": "python", "session": "heavy", "code": "import matplotlib.pyplot as plt, numpy as np\n" +
	"plt.figure(figsize=(8, 8), dpi=150)\nplt.imshow(np.random.rand(1200, 1200, 3), interpolation='none')\nplt.show()\n" +
	"open('/data/large.bin', 'wb').write(bytes(3 << 20))"}}

// largeCall reads a file of 3 MiB, which is too large for an event as well.
var largeCall = modelCall{"read_artifact", map[string]any{"session_id": "heavy", "path": "/mnt/data/large.bin"}}

// checkShown checks what the model, or the program, sees of each call. textOnly means that the
// framework shows no images, fetch that the server still serves the links.
func checkShown(t *testing.T, got []shown, textOnly, fetch bool) {
	t.Helper()
	calls := clientCalls("")
	if len(got) < len(calls) {
		t.Fatalf("%d results for %d calls: %+v", len(got), len(calls), got)
	}
	texts := []string{"1234567.89", "plotting", "written", "(no output)", "ZeroDivisionError: division by zero",
		"No artifact at /mnt/data/missing.csv"}
	for i, text := range texts {
		if !strings.Contains(got[i].Text, text) {
			t.Errorf("the result of %v has no %q: %q", calls[i].Args, text, got[i].Text)
		}
		if strings.Contains(got[i].Text, "sandbox://") {
			t.Errorf("the result of %v has a link that only this server knows: %q", calls[i].Args, got[i].Text)
		}
	}
	if plot := got[1]; !textOnly {
		if len(plot.Images) != 1 || !bytes.HasPrefix(plot.Images[0], []byte("\x89PNG\r\n\x1a\n")) {
			t.Errorf("the plot: %d images, text %q", len(plot.Images), plot.Text)
		}
	}
	if !strings.Contains(got[4].Text, "exit code 1") {
		t.Errorf("the failed program: %q", got[4].Text)
	}
	link := signedLink.FindString(got[2].Text)
	if link == "" {
		t.Errorf("there is no link to the file: %q", got[2].Text)
	} else if content := get(t, link, fetch); content != "" && content != "rev\n1234567.89\n" {
		t.Errorf("%s is %q", link, content)
	}
}

var signedLink = regexp.MustCompile(`http://\S+/files/\w+/report\.csv\?\S*sig=[0-9a-f]+`)

// get downloads a link if the server is still running.
func get(t *testing.T, link string, served bool) string {
	t.Helper()
	if !served {
		return ""
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", link, resp.Status, err)
	}
	return string(b)
}

// clientReport is what a client prints when it ends.
type clientReport struct {
	Tools   []string          `json:"tools"`
	Answers map[string]string `json:"answers"` // of an agent, by API
	Results []struct {        // of a client without a model
		Text   string   `json:"text"`
		Images []string `json:"images"`
		Types  []string `json:"types"`
		Error  bool     `json:"error"`
	} `json:"results"`
}

// runClient lets a client's program talk to a new server, over HTTP or stdio.
func runClient(t *testing.T, script string, stdio bool, env ...string) clientReport {
	t.Helper()
	interpreter := node
	if strings.HasSuffix(script, ".py") {
		interpreter = func(t *testing.T) string { return clientPython(t, script) }
	}
	if stdio {
		root := stdioRoot(t)
		settings := map[string]string{"SANDBOX_ROOT": root, "SANDBOX_HTTP_PORT": "0"}
		for _, kv := range baseEnv() {
			k, v, _ := strings.Cut(kv, "=")
			settings[k] = v
		}
		b, err := json.Marshal(map[string]any{"command": binary, "args": []string{"stdio"}, "env": settings})
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, "MCP_STDIO="+string(b))
	} else {
		s := serve(t)
		env = append(env, "MCP_URL="+s.URL+"/mcp", "MCP_TOKEN="+s.Token)
	}
	cmd := exec.CommandContext(t.Context(), interpreter(t), filepath.Join(clientsDir(t), script))
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(baseEnv(), append(env, "HOME="+t.TempDir())...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var report clientReport
	if err == nil {
		err = json.Unmarshal(out, &report)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", script, err, out, stderr.String())
	}
	for _, want := range []string{"run", "run_code", "list_runners", "upload_file"} {
		if !slices.Contains(report.Tools, want) {
			t.Errorf("there is no tool %s among %v", want, report.Tools)
		}
	}
	return report
}

// TestAgents lets agents of real frameworks use the server. Only the model is scripted, so the test
// sees what a model would see, and whether its provider would accept the request.
func TestAgents(t *testing.T) {
	for _, c := range []struct {
		name, script string
		apis         []string
		stdio        bool
		textOnly     string // no images are shown with this API
	}{
		{name: "langchain", script: "agent_langchain.py", apis: []string{apiResponses, apiMessages}},
		{name: "langchain over stdio", script: "agent_langchain.py", apis: []string{apiMessages}, stdio: true},
		{name: "smolagents", script: "agent_smolagents.py", apis: []string{apiChat}, textOnly: apiChat},
		{name: "openai-agents", script: "agent_openai.py", apis: []string{apiChat, apiResponses}, textOnly: apiChat},
		{name: "openai-agents over stdio", script: "agent_openai.py", apis: []string{apiResponses}, stdio: true},
		{name: "pydantic-ai", script: "agent_pydantic_ai.py", apis: []string{apiChat, apiResponses, apiMessages}},
		{name: "ai-sdk", script: "agent_ai_sdk.mjs", apis: []string{apiChat, apiResponses, apiMessages}, textOnly: apiChat},
		{name: "ai-sdk over stdio", script: "agent_ai_sdk.mjs", apis: []string{apiMessages}, stdio: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, modelAnswer, clientCalls)
			report := runClient(t, c.script, c.stdio, "MODEL_URL="+p.URL, "MODEL_APIS="+strings.Join(c.apis, " "))
			for _, api := range c.apis {
				if report.Answers[api] != modelAnswer {
					t.Errorf("%s: the agent answers %q", api, report.Answers[api])
				}
				checkShown(t, p.results(api), c.textOnly == api, !c.stdio)
			}
		})
	}
}

// TestDocumentedClients uses clients without a model, as their documentation shows. They wait for a
// run that is silent for longer than their HTTP clients wait, and for an image and a file larger
// than an event may be.
func TestDocumentedClients(t *testing.T) {
	calls := append(clientCalls("client"), quietCall, heavyCall, largeCall)
	b, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, script, form string
		stdio              bool
	}{
		{name: "fastmcp", script: "client_fastmcp.py"},
		{name: "fastmcp over stdio", script: "client_fastmcp.py", stdio: true},
		{name: "python SDK 1.x", script: "client_sdk1.py"},
		{name: "python SDK 1.x with headers", script: "client_sdk1.py", form: "headers"},
		{name: "python SDK 1.x over stdio", script: "client_sdk1.py", stdio: true},
		{name: "python SDK 2.x", script: "client_sdk2.py", form: "timeout"},
		{name: "python SDK 2.x without a timeout", script: "client_sdk2.py"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			report := runClient(t, c.script, c.stdio, "CALLS="+string(b), "MCP_FORM="+c.form)
			var got []shown
			for _, r := range report.Results {
				s := shown{Text: r.Text}
				for _, image := range r.Images {
					b, err := base64.StdEncoding.DecodeString(image)
					if err != nil {
						t.Fatal(err)
					}
					s.Images = append(s.Images, b)
				}
				got = append(got, s)
			}
			checkShown(t, got, false, !c.stdio)
			for i, r := range report.Results {
				if wantError := calls[i].Tool == "read_artifact" && i < len(calls)-1; r.Error != wantError {
					t.Errorf("the result of %v: error is %v", calls[i].Args, r.Error)
				}
				if slices.Contains(r.Types, "resource_link") {
					t.Errorf("the result of %v has a resource link", calls[i].Args)
				}
			}
			if quiet := got[len(got)-3]; !strings.Contains(quiet.Text, "awake") {
				t.Errorf("the quiet run: %q", quiet.Text)
			}
			if heavy := got[len(got)-2]; len(heavy.Images) != 1 {
				t.Errorf("the heavy image: %d images, %q", len(heavy.Images), heavy.Text)
			}
			if large := got[len(got)-1]; len(large.Text) < 4<<20 {
				t.Errorf("the large file: %d bytes: %.200q", len(large.Text), large.Text)
			}
		})
	}
}

// clientPython returns the interpreter of the environment that a client's program needs.
func clientPython(t *testing.T, script string) string {
	t.Helper()
	setting, name := "SANDBOX_TEST_PYTHON", "clients"
	switch script {
	case "agent_langchain.py", "agent_openai.py", "agent_smolagents.py", "client_sdk1.py":
		setting, name = "SANDBOX_TEST_PYTHON_SDK1", "clients-sdk1"
	}
	python := os.Getenv(setting)
	if python == "" {
		python = filepath.Join(clientsDir(t), "..", "..", ".cache", name, "bin", "python")
	}
	if _, err := os.Stat(python); err != nil {
		skip(t, "no Python clients at %s: run make test", python)
	}
	return python
}
