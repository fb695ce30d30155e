package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
)

const (
	recordCipher    = 20 // change_cipher_spec
	recordAlert     = 21
	recordHandshake = 22 // the first byte of a TLS connection
	recordStart     = 6  // a record's type, version and length, and the first byte of its content
	extensionECH    = 0xfe0d
	maxHello        = 32 << 10 // with what follows it; the usual ones have 2 KB
)

// beginsTLS reports whether a connection that begins with b is or may become TLS: its first record
// is a ClientHello, or one that some server skips. Lengths in other protocols look like a record's
// type, and some servers accept any version, so the content decides.
func beginsTLS(b []byte) bool {
	isType := func(c byte) bool { return recordCipher <= c && c <= recordHandshake }
	switch {
	case len(b) == 0 || !isType(b[0]):
		return false
	case len(b) < recordStart:
		return true
	case b[3] == 0 && b[4] == 0: // no content: the next record follows
		return isType(b[5])
	case b[0] == recordAlert && b[1] == 3 && b[3] == 0 && b[4] == 2: // a warning or fatal
		return true
	}
	return b[5] == 1 // a ClientHello, a change_cipher_spec or a warning
}

func tlsRefusal(format string, args ...any) *refusal {
	p := refuse(http.StatusForbidden, codeTLS, format, args...)
	return p.because(p.message)
}

// readHello reads a TLS ClientHello, in however many pieces it comes, and returns all that it has
// read. It refuses one that does not ask for name. crypto/tls parses it: its parser is well tested
// against hostile input, and a parser of our own could understand a message in another way.
func readHello(code net.Conn, name string) ([]byte, error) {
	in := &helloConn{Conn: code}
	var hello *tls.ClientHelloInfo
	err := tls.Server(in, &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		hello = info
		return nil, errors.New("parsed")
	}}).HandshakeContext(context.Background())
	switch {
	case hello == nil && in.read.Len() >= maxHello:
		return nil, tlsRefusal("the TLS handshake of code with %s is too long", name)
	case hello == nil:
		return nil, tlsRefusal("code must begin with a TLS handshake to %s (%v)", name, err)
	case slices.Contains(hello.Extensions, extensionECH):
		return nil, tlsRefusal("code encrypts the name in its TLS handshake with %s: turn Encrypted Client Hello off", name)
	case hello.ServerName == "":
		return nil, tlsRefusal("code names no host in its TLS handshake with %s: it must send the name (SNI)", name)
	case !isASCII(hello.ServerName) || !strings.EqualFold(hello.ServerName, name): // which folds other letters to ASCII, too
		return nil, tlsRefusal("code asks for %s in its TLS handshake with %s: connect to that name instead", shown(hello.ServerName), name)
	}
	return in.read.Bytes(), nil
}

// helloConn keeps what is read from a connection, and sends nothing to it.
type helloConn struct {
	net.Conn
	read bytes.Buffer
}

func (c *helloConn) Read(p []byte) (int, error) {
	if c.read.Len() >= maxHello {
		return 0, io.ErrShortBuffer
	}
	n, err := c.Conn.Read(p[:min(len(p), maxHello-c.read.Len())])
	c.read.Write(p[:n])
	return n, err
}

func (c *helloConn) Write(p []byte) (int, error) { return len(p), nil }
