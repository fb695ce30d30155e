package agentbin

import (
	"errors"
	"testing"
	"testing/fstest"
)

func TestBinary(t *testing.T) {
	built := fstest.MapFS{"bin/sandbox-agent-linux-amd64": {Data: []byte("ELF")}}
	notBuilt := fstest.MapFS{"bin/sandbox-agent-linux-amd64.placeholder": {Data: []byte("text")}}

	if b, err := read(built, "amd64"); err != nil || string(b) != "ELF" {
		t.Errorf("built: got %q, %v", b, err)
	}
	if b, err := read(notBuilt, "amd64"); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("not built: got %q, %v; want ErrNotBuilt, never the placeholder", b, err)
	}
	if _, err := read(built, "riscv64"); err == nil || errors.Is(err, ErrNotBuilt) {
		t.Errorf("unsupported architecture: got %v; building would not help", err)
	}
}
