package runinit

import (
	"net"
	"os"
	"testing"

	"mcp-code-sandbox/internal/wire"
)

// TestShowBeforePump: a display comes after what was printed before it, even if it arrives before
// the pump has started.
func TestShowBeforePump(t *testing.T) {
	serverEnd, agentEnd := net.Pipe()
	agent := wire.NewConn(agentEnd, wire.AgentSide, func(s *wire.Stream, _ wire.Frame) {
		defer s.Close()
		var reads [2]*os.File
		for i, text := range []string{"out\n", "err\n"} {
			r, w, err := os.Pipe()
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Close()
			if _, err := w.WriteString(text); err != nil {
				t.Error(err)
			}
			_ = w.Close()
			reads[i] = r
		}
		out := NewOutput(s, reads[0], reads[1])
		if err := out.Show(Display{MIME: "text/plain", Data: []byte("shown")}); err != nil {
			t.Error(err)
		}
		out.Pump()
		if err := s.Send(t.Context(), wire.Frame{Type: wire.TypeExit, Exit: &wire.Exit{}}); err != nil {
			t.Error(err)
		}
	})
	defer agent.Close()
	server := wire.NewConn(serverEnd, wire.ServerSide, nil)
	defer server.Close()
	s, err := server.Open(wire.Frame{Type: wire.TypeRun, Run: &wire.Run{Argv: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, want := range []wire.Type{wire.TypeStdout, wire.TypeStderr, wire.TypeDisplay, wire.TypeExit} {
		f, err := s.Recv(t.Context())
		if err != nil || f.Type != want {
			t.Fatalf("got %s %q, %v; want %s", f.Type, f.Data, err, want)
		}
	}
}
