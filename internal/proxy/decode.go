package proxy

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/andybalholm/brotli"
)

// maxCodings bounds how many times a body may be compressed.
const maxCodings = 2

// decodeBody decompresses a body that the service compressed although the request asked for
// identity. An unknown coding is an error, since its content cannot be searched.
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
		return nil, false, fmt.Errorf("the body is compressed %d times", len(codings))
	}
	for _, coding := range slices.Backward(codings) {
		var open func(io.Reader) (io.Reader, error)
		switch coding {
		case "gzip", "x-gzip":
			open = func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }
		case "deflate":
			open = openDeflate
		case "br":
			open = func(r io.Reader) (io.Reader, error) { return brotli.NewReader(r), nil }
		default:
			return nil, false, fmt.Errorf("unknown coding %q", coding)
		}
		body = &lazyReader{src: body, open: open}
	}
	return body, len(codings) > 0, nil
}

// openDeflate reads zlib's format, as the standard demands, or raw deflate, as many servers send.
func openDeflate(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(2)
	if err == nil && head[0]&0x0f == 8 && (uint(head[0])<<8|uint(head[1]))%31 == 0 {
		return zlib.NewReader(b)
	}
	return flate.NewReader(b), nil
}

// lazyReader opens a decoder at the first byte. The header does not wait for the body, and an empty
// body stays empty.
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
			return 0, fmt.Errorf("decompress the service's answer: %w", err)
		}
		l.r = r
	}
	n, err := l.r.Read(p)
	if err == io.ErrUnexpectedEOF {
		err = fmt.Errorf("decompress the service's answer: %w", err)
	}
	return n, err
}
