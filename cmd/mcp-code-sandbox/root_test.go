package main

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestExplainDenied(t *testing.T) {
	denied := explainDenied(&fs.PathError{Op: "open", Path: "/x", Err: fs.ErrPermission})
	if !errors.Is(denied, fs.ErrPermission) || !strings.HasSuffix(denied.Error(), "run the command as the user of the server") {
		t.Errorf("%v", denied)
	}
	if other := explainDenied(fs.ErrNotExist); other != fs.ErrNotExist {
		t.Errorf("%v", other)
	}
}
