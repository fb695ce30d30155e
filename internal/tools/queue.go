package tools

import (
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
)

// queueJSON describes the run that a queued run waits for.
type queueJSON struct {
	RunID          string `json:"run_id"`
	Tool           string `json:"tool"`
	RunningSeconds int64  `json:"running_seconds"`
	Ahead          int    `json:"ahead" jsonschema:"Runs that come first, including this one"`
}

func queueOf(q *executor.Queue) *queueJSON {
	if q == nil {
		return nil
	}
	return &queueJSON{RunID: q.RunID, Tool: q.Tool, RunningSeconds: int64(q.Running / time.Second), Ahead: q.Ahead}
}

// String returns the run's id and how long it has been running.
func (q *queueJSON) String() string {
	text := q.RunID + " ("
	if q.Tool != "" {
		text += q.Tool + ", "
	}
	text += fmt.Sprintf("running for %d s)", q.RunningSeconds)
	if more := q.Ahead - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// queueNotice returns the content of a progress notification: what a run waits for or, with nil,
// that it starts. A client that wants details gets it in _meta, since it shows messages as output.
func queueNotice(q *executor.Queue, details bool) (message string, meta mcp.Meta) {
	status, behind := "running", queueOf(q)
	if behind != nil {
		status = "queued"
	}
	if details {
		meta = mcp.Meta{statusKey: status}
		if behind != nil {
			meta[queuedKey] = behind
		}
		return "", meta
	}
	if behind != nil {
		return fmt.Sprintf("[queued behind %s]\n", behind), nil
	}
	return "[started]\n", nil
}
