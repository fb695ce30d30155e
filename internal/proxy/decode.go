package proxy

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
)

// maxCodings bounds how often a body may be packed.
const maxCodings = 2

// decodeBody undoes the codings that a service applied although it was asked not to. What is packed cannot be searched, so a coding
// that is not known is an error.
func decodeBody(body io.Reader, contentEncoding []string) (decoded io.Reader, changed bool, err error) {
	var codings []string
	for _, value := range contentEncoding {
		for coding := range strings.SplitSeq(value, ",") {
			coding = strings.ToLower(strings.TrimSpace(coding))
			if coding != "" && coding != "identity" {
				codings = append(codings, coding)
			}
		}
	}
	if len(codings) > maxCodings {
		return nil, false, fmt.Errorf("the body is packed %d times", len(codings))
	}
	for i := len(codings) - 1; i >= 0; i-- {
		var open func(io.Reader) (io.Reader, error)
		switch codings[i] {
		case "gzip", "x-gzip":
			open = func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }
		case "deflate":
			open = openDeflate
		case "br":
			open = func(r io.Reader) (io.Reader, error) { return brotli.NewReader(r), nil }
		default:
			return nil, false, fmt.Errorf("the coding %q is not known", codings[i])
		}
		body = &lazyReader{src: body, open: open}
	}
	return body, len(codings) > 0, nil
}

// openDeflate reads zlib's format, as the standard says, or bare deflate, as many servers send.
func openDeflate(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(2)
	if err == nil && head[0]&0x0f == 8 && (uint(head[0])<<8|uint(head[1]))%31 == 0 {
		return zlib.NewReader(b)
	}
	return flate.NewReader(b), nil
}

// lazyReader opens a decoder when the first byte is there, so that headers do not wait for the body and an empty body stays one.
type lazyReader struct {
	src  io.Reader
	open func(io.Reader) (io.Reader, error)
	r    io.Reader
}

func (l *lazyReader) Read(p []byte) (int, error) {
	if l.r == nil {
		b := bufio.NewReader(l.src)
		if _, err := b.Peek(1); err != nil {
			return 0, err
		}
		r, err := l.open(b)
		if err != nil {
			return 0, fmt.Errorf("unpacking the service's answer: %w", err)
		}
		l.r = r
	}
	n, err := l.r.Read(p)
	if err == io.ErrUnexpectedEOF {
		err = fmt.Errorf("unpacking the service's answer: %w", err)
	}
	return n, err
}
