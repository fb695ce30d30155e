package tools

import (
	"slices"
	"strings"
)

// Instructions tell a client's model which of the offered tools to use for what, in fewer than 120 words. They come once, at
// initialize, and name no tool that the server does not have.
func Instructions(opt Options) string {
	offered := opt.Offered()
	has := func(name string) bool { return slices.Contains(offered, name) }
	var lines []string
	add := func(line string, names ...string) {
		if !slices.ContainsFunc(names, func(name string) bool { return !has(name) }) {
			lines = append(lines, line)
		}
	}
	add("Code runs in an isolated sandbox. Files in /data are kept per session: use one session id for the whole conversation.")
	add("- run: first choice; give a session to keep variables between calls.", "run")
	add("- run_code: fresh process in any language.", "run_code")
	add("- run_python: fresh Python process, stdout and stderr apart.", "run_python")
	add("- wait_run: follow a run whose status is running.", "wait_run")
	add("- cancel_run: end a run.", "cancel_run")
	add("- upload_file: bring the user's files in.", "upload_file")
	add("- list_artifacts: find files.", "list_artifacts")
	add("- read_artifact: look at an image or file.", "read_artifact")
	add("- delete_file: remove one file.", "delete_file")
	add("- list_sessions: find earlier sessions.", "list_sessions")
	add("- close_session: only when the user's work is done; it removes the files.", "close_session")
	add("- list_runners: languages and libraries.", "list_runners")
	add("- list_services: APIs that code may call.", "list_services")
	return strings.Join(lines, "\n")
}
