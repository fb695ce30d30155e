package tools

import (
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
)

// queueJSON is the run that another one waits for.
type queueJSON struct {
	RunID          string `json:"run_id"`
	Tool           string `json:"tool"`
	RunningSeconds int64  `json:"running_seconds"`
	Ahead          int    `json:"ahead"` // runs that come first, this one included
}

func queueOf(q *executor.Queue) *queueJSON {
	if q == nil {
		return nil
	}
	return &queueJSON{RunID: q.RunID, Tool: q.Tool, RunningSeconds: int64(q.Running / time.Second), Ahead: q.Ahead}
}

// String names the run and says how long it has been going.
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

// queueNotice says in a progress notification what a run waits for, or, with nil, that it waits no
// longer. A client that shows runs to people gets it in _meta: its messages are output.
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
