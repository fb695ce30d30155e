package tools

import (
	"slices"
	"strings"
)

// Instructions tell a client's model when to use which of the offered tools, in fewer than 120
// words, the first choice first. The server sends them once, in response to initialize.
func Instructions(opt Options) string {
	offered := opt.Offered()
	lines := []string{"Code runs in an isolated sandbox. Files in /data are kept per session: use one session id for the whole conversation."}
	for _, tool := range [][2]string{
		{"run", "first choice; pass a session to keep variables between calls."},
		{"run_code", "fresh process in any language."},
		{"run_python", "fresh Python process, separate stdout and stderr."},
		{"wait_run", "follow a run whose status is running."},
		{"cancel_run", "end a run."},
		{"upload_file", "bring the user's files in."},
		{"list_artifacts", "find files."},
		{"read_artifact", "look at an image or file."},
		{"delete_file", "remove one file."},
		{"list_sessions", "find earlier sessions."},
		{"close_session", "only when the user's work is done; it removes the files."},
		{"list_runners", "languages and libraries."},
		{"list_services", "APIs that code may call."},
	} {
		if slices.Contains(offered, tool[0]) {
			lines = append(lines, "- "+tool[0]+": "+tool[1])
		}
	}
	if opt.LinksEnd {
		lines = append(lines, "Download links work only while this server runs.")
	}
	return strings.Join(lines, "\n")
}
