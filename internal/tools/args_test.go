package tools

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
)

// TestLargeNumbers: no message writes a number with an exponent.
func TestLargeNumbers(t *testing.T) {
	const most = 2_000_000 * time.Second
	set := &toolset{maxTimeout: most}
	schema := schemaFor[runOptions]()
	low, high := 1.0, most.Seconds()
	schema.Properties["timeout_seconds"].Minimum, schema.Properties["timeout_seconds"].Maximum = &low, &high
	args, err := parseArguments(json.RawMessage(`{"timeout_seconds":3000000}`), parameters{"timeout_seconds": "timeout_seconds"})
	if err != nil {
		t.Fatal(err)
	}
	var options runOptions
	if err := args.decode(schema, &options); err == nil || err.Error() != "timeout_seconds must be between 1 and 2000000" {
		t.Errorf("%v", err)
	}
	for _, text := range []string{
		typeName(schema.Properties["timeout_seconds"]),
		set.hintForPeople(executor.Result{Cause: sandbox.CauseTimeout}),
		set.nextStep(executor.Result{TimeLeft: most}),
		set.nextStep(executor.Result{Queued: &executor.Queue{}, Timeout: most}),
	} {
		if !strings.Contains(text, "2000000") {
			t.Error(text)
		}
	}
}
