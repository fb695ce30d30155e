//go:build linux

package integration

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestFailedRunListsFiles checks that results name the files of a run however it ended, except for
// run_python, whose contract lists them on success only.
func TestFailedRunListsFiles(t *testing.T) {
	s := serve(t)
	cs := s.client(t, "2025-11-25")
	const plot = "import matplotlib.pyplot as plt, time\n_ = open('/data/made.txt', 'w').write('x')\nplt.plot([1, 2])\nplt.show()\nprint('shown', flush=True)\n"
	for name, tt := range map[string]struct {
		args map[string]any
		code string
		fact string
	}{
		"an exception":        {map[string]any{"session": "exception"}, plot + "1/0", "exit code 1"},
		"an exception, fresh": {map[string]any{}, plot + "1/0", "exit code 1"},
		"a timeout":           {map[string]any{"session": "timeout", "timeout_seconds": 10}, plot + "time.sleep(60)", "Execution timed out after 10 seconds"},
		"a cancelled run":     {map[string]any{"session": "cancel", "background": true}, plot + "time.sleep(60)", "cancelled"},
	} {
		tt.args["env"], tt.args["code"] = "python", tt.code
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "run", Arguments: tt.args})
		if err != nil {
			t.Fatal(err)
		}
		if tt.args["background"] != nil {
			id := regexp.MustCompile(`run_\d\w+`).FindString(res.Content[0].(*mcp.TextContent).Text)
			eventually(t, 60*time.Second, "the plot", func() bool {
				return strings.Contains(said(t, cs, "wait_run", map[string]any{"run_id": id, "timeout_seconds": 0.2}), "shown")
			})
			if res, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "cancel_run", Arguments: map[string]any{"run_id": id}}); err != nil {
				t.Fatal(err)
			}
		}
		text, images := "", 0
		for _, c := range res.Content {
			switch c := c.(type) {
			case *mcp.ImageContent:
				images++
			case *mcp.TextContent:
				text += c.Text
			}
		}
		if strings.Count(text, tt.fact) != 1 || !strings.Contains(text, "; files: made.txt <http") || strings.Contains(text, ".plots") || images != 1 {
			t.Errorf("%s: %d images, %s", name, images, text)
		}
	}
	if r := s.cell(t, "plain", "python", plot+"1/0"); r.ExitCode != 1 || len(r.Artifacts) != 1 || len(r.Images) != 1 {
		t.Errorf("a plain caller: %+v", r)
	}
	res := s.call(t, "run_python", map[string]any{"session_id": "p", "code": plot + "1/0"})
	if text := fmt.Sprint(res.Content); !strings.Contains(text, `"artifacts": []`) {
		t.Errorf("run_python: %s", text)
	}
}

// TestImagesNotShown checks that a result names the images that it does not show, also a stored
// result.
func TestImagesNotShown(t *testing.T) {
	s := serve(t)
	cs := s.client(t, "2025-11-25")
	const twelve = "import matplotlib.pyplot as plt\nfor i in range(12):\n    plt.figure(figsize=(1, 1)); plt.plot([i, 1])"
	want := regexp.MustCompile(`2 more images are not shown here: \.plots/run_\w+-11\.png [^,]*, \.plots/run_\w+-12\.png`)
	for tool, args := range map[string]map[string]any{
		"run": {"session": "x", "env": "python", "code": twelve}, "run_code": {"session": "y", "language": "python", "code": twelve}, "run_python": {"session": "z", "code": twelve},
	} {
		text := said(t, cs, tool, args)
		if !want.MatchString(text) {
			t.Errorf("%s: %s", tool, text)
		}
		if text = said(t, cs, "wait_run", map[string]any{"run_id": regexp.MustCompile(`run_\d\w+`).FindString(text)}); !want.MatchString(text) {
			t.Errorf("wait_run of %s: %s", tool, text)
		}
	}
	// Noise does not compress: the store keeps the first image and the names of the others.
	const heavy = "import numpy as np, matplotlib.pyplot as plt\nopen('/data/x', 'w').close()\nfor i in range(3):\n    plt.figure(figsize=(6, 6)); plt.imshow(np.random.rand(600, 600, 3), interpolation='none'); plt.show()"
	text := said(t, cs, "run", map[string]any{"session": "h", "env": "python", "code": heavy})
	if strings.Contains(text, "not shown") {
		t.Errorf("heavy images: %s", text)
	}
	id := regexp.MustCompile(`run_\d\w+`).FindString(text)
	if text = said(t, cs, "wait_run", map[string]any{"run_id": id}); !strings.Contains(text, "not shown here: .plots/"+id+"-") {
		t.Errorf("wait_run of heavy images: %s", text)
	}
}
