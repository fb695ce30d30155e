package wire

import (
	"context"
	"io"
)

// Execute performs a single run over the stream to an agent whose hello has been read. It returns
// how the run ended, drops its output, and closes the stream.
func Execute(ctx context.Context, stream io.ReadWriteCloser, run *Run) (Exit, error) {
	conn := NewConn(stream, ServerSide, nil)
	defer conn.Close()
	s, err := conn.Open(Frame{Type: TypeRun, Run: run})
	if err != nil {
		return Exit{}, err
	}
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return Exit{}, err
		}
		if f.Type == TypeExit {
			return *f.Exit, nil
		}
	}
}
