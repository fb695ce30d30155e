//go:build unix

// Package images_test checks images/build against the definitions of the runners and the contracts.
package images_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/runners"
)

// recorder is a fake docker that writes its arguments to a file and knows every interpreter's
// version.
const recorder = `#!/bin/sh
case $1 in
run) case "$*" in *python3*) echo Python 3.12.7 ;; *) echo v22.11.0 ;; esac ;;
*) printf '%s\n' "$@" >>"$RECORD" ;;
esac
`

func TestBuild(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash")
	}
	for _, want := range []struct {
		language, interpreter, base string
		tags                        []string
	}{
		{"python", "Python 3.12.7", "", []string{"runner-python", "mcp-sandbox-runner-python:latest", "llm-sandbox:latest"}},
		{"typescript", "Node.js 22.11.0", "other-node:1", []string{"runner-typescript", "mcp-sandbox-runner-typescript:latest"}},
	} {
		t.Run(want.language, func(t *testing.T) {
			dir := t.TempDir()
			docker, record := filepath.Join(dir, "docker"), filepath.Join(dir, "record")
			if err := os.WriteFile(docker, []byte(recorder), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("./build", want.language)
			cmd.Env = append(os.Environ(), "DOCKER="+docker, "RECORD="+record, "VERSION=v1.2.3", "BUILD_FLAGS=--pull", "BUILD_BASE=", "BASE="+want.base)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			text, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			args := strings.Split(strings.TrimSpace(string(text)), "\n")
			values := map[string][]string{}
			for i, arg := range args[:len(args)-1] {
				values[arg] = append(values[arg], args[i+1])
			}

			var definition struct{ Libraries []string }
			b, err := runners.Files.ReadFile(want.language + "/runner.json")
			if err == nil {
				err = json.Unmarshal(b, &definition)
			}
			if err != nil {
				t.Fatal(err)
			}
			libraries := strings.Join(definition.Libraries, ",")
			labels := []string{
				"sandbox.interpreter=" + want.interpreter, "sandbox.language=" + want.language, "sandbox.libraries=" + libraries,
				"sandbox.protocol=agent", "sandbox.runner=true", "sandbox.version=v1.2.3",
			}
			if got := slices.Sorted(slices.Values(values["--label"])); !slices.Equal(got, labels) {
				t.Errorf("labels\n%q, want\n%q", got, labels)
			}
			if !slices.Equal(values["--tag"], want.tags) {
				t.Errorf("tags %q, want %q", values["--tag"], want.tags)
			}
			builds := []string{"LIBRARIES=" + libraries}
			if want.base != "" {
				builds = append(builds, "BASE="+want.base, "BUILD_BASE="+want.base)
			}
			if !slices.Equal(values["--build-arg"], builds) {
				t.Errorf("build arguments %q, want %q", values["--build-arg"], builds)
			}
			if !slices.Contains(args, "--pull") || args[len(args)-1] != "." {
				t.Errorf("arguments %q: no BUILD_FLAGS, or not the root of the repository", args)
			}
			if file := values["--file"]; len(file) != 1 || !exists(filepath.Join("..", file[0])) {
				t.Errorf("files %q", file)
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
