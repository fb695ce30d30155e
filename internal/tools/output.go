package tools

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
)

const (
	outputPrefix = "sandbox://runs/"
	outputSuffix = "/output"
	outputPiece  = 256 << 10 // bytes of output in one piece
)

// outputURI returns the URI of a run's output from an offset.
func outputURI(runID string, offset int64) string {
	uri := outputPrefix + url.PathEscape(runID) + outputSuffix
	if offset > 0 {
		uri += fmt.Sprintf("?offset=%d", offset)
	}
	return uri
}

func parseOutputURI(uri string) (runID string, offset int64, ok bool) {
	rest, isRun := strings.CutPrefix(uri, outputPrefix)
	rest, query, _ := strings.Cut(rest, "?")
	runID, isOutput := strings.CutSuffix(rest, outputSuffix)
	if !isRun || !isOutput || strings.Contains(runID, "/") {
		return "", 0, false
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", 0, false
	}
	if text := values.Get("offset"); text != "" {
		if offset, err = strconv.ParseInt(text, 10, 64); err != nil || offset < 0 {
			return "", 0, false
		}
	}
	runID, err = url.PathUnescape(runID)
	return runID, offset, err == nil
}

// readOutput returns a piece of a run's output.
func (t *toolset) readOutput(ctx context.Context, req *mcp.ReadResourceRequest, runID string, offset int64) (mcp.Result, error) {
	caller, err := callerOf(req.Extra)
	if err != nil {
		return nil, err
	}
	part, err := t.executor.RunOutput(ctx, caller, runID, offset, outputPiece)
	if refusal, ok := errors.AsType[*executor.Error](err); ok {
		return nil, readError(refusal, clientOf(req), req.Params.URI)
	}
	if err != nil {
		return nil, err
	}
	text := validUTF8(part.Text)
	switch {
	case offset > 0 && offset >= part.Size:
		text = fmt.Sprintf("[the output has %d bytes]", part.Size)
	case part.Next < part.Size:
		text += fmt.Sprintf("\n[%d of %d bytes; the next piece is %s]", part.Next, part.Size, outputURI(runID, part.Next))
	}
	return &mcp.ReadResourceResult{
		Cacheable: mcp.Cacheable{CacheScope: "private"},
		Contents:  []*mcp.ResourceContents{{URI: req.Params.URI, MIMEType: "text/plain", Text: text}},
	}, nil
}
