package docker

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/moby/moby/api/pkg/stdcopy"

	"mcp-code-sandbox/internal/sandbox"
)

// connBuffer is the size of each connection's read buffer.
const connBuffer = 16 << 10

// agentConn is the agent's stdin and stdout, as the engine carries them: output comes in pieces,
// each after an 8-byte header with its stream and length. It keeps what the agent prints to stderr.
type agentConn struct {
	net.Conn // to the engine; writes go to the agent's stdin
	said     sandbox.Tail
	over     func() // called when the connection has ended, possibly more than once

	mu   sync.Mutex // guards reading
	r    *bufio.Reader
	left int64 // of the current piece of stdout
}

func newAgentConn(conn net.Conn, over func()) *agentConn {
	return &agentConn{Conn: conn, r: bufio.NewReaderSize(conn, connBuffer), over: over}
}

func (c *agentConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.left == 0 {
		if err := c.next(); err != nil {
			c.over()
			return 0, err
		}
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err != nil {
		c.over()
	}
	return n, err
}

// next reads up to the next piece of stdout.
func (c *agentConn) next() error {
	var head [8]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return err
	}
	n := int64(binary.BigEndian.Uint32(head[4:]))
	stream := stdcopy.StdType(head[0])
	switch {
	case stream < stdcopy.Stdout || stream > stdcopy.Systemerr || head[1]|head[2]|head[3] != 0:
		return fmt.Errorf("the engine's stream is out of step: % x", head)
	case stream == stdcopy.Stdout:
		c.left = n
		return nil
	}
	_, err := io.CopyN(&c.said, c.r, n)
	if stream == stdcopy.Systemerr {
		return errors.New("the engine: " + c.said.String())
	}
	return err
}

func (c *agentConn) Close() error {
	err := c.Conn.Close()
	c.over()
	return err
}
