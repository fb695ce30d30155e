package sandbox

import (
	"bytes"
	"io"
	"sync"
)

// Tail keeps the last TailBytes written to it, such as a process's last messages for Exit.Detail.
// The zero value is ready to use. It is safe for concurrent use.
type Tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// TailBytes is the capacity of a Tail.
const TailBytes = 4096

func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p[max(0, len(p)-TailBytes):])
	if over := t.buf.Len() - TailBytes; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

// ReadFrom implements io.ReaderFrom. It saves each sandbox the 32 KB buffer of io.Copy, for rare
// output.
func (t *Tail) ReadFrom(r io.Reader) (n int64, err error) {
	var buf [512]byte
	for {
		m, err := r.Read(buf[:])
		_, _ = t.Write(buf[:m])
		n += int64(m)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
