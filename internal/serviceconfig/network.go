package serviceconfig

import (
	"fmt"

	"mcp-code-sandbox/internal/egress"
)

// Network is what runs may reach by name.
type Network struct {
	Given       bool     // the file has the section
	Allow       []string // nil: every public host
	UploadBytes int64    // that a run may send; 0: the default
}

func (r *reader) network(v any) (n Network) {
	o, ok := r.object("network", v, "allow", "uploadBytes")
	if !ok {
		return n
	}
	n.Given = true
	n.Allow = o.texts("allow")
	for i, text := range n.Allow {
		if err := egress.CheckEntry(text); err != nil {
			o.fail(fmt.Sprintf("allow[%d]", i), "%v", err)
		}
	}
	n.UploadBytes = o.bytes("uploadBytes", 1, 0)
	return n
}
