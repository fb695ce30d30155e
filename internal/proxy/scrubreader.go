package proxy

import (
	"io"
	"net/http"
	"strings"
)

// scrubReader gives what src gives with the secrets masked. It passes on at once whatever cannot be the start of a secret, so that
// streams are not delayed, and keeps no more than one secret's length.
type scrubReader struct {
	src   io.Reader
	s     *scrubber
	held  []byte // read, and possibly the start of a secret
	small []byte // done with, for readers with little room
	err   error
}

func newScrubReader(src io.Reader, s *scrubber) *scrubReader { return &scrubReader{src: src, s: s} }

func (r *scrubReader) Read(p []byte) (int, error) {
	if len(r.small) > 0 {
		n := copy(p, r.small)
		r.small = r.small[n:]
		return n, nil
	}
	if len(p) == 0 || r.err != nil {
		return 0, r.err
	}
	if len(p) > r.s.hold { // with what is held there is room for more
		return r.fill(p)
	}
	buf := make([]byte, r.s.hold+4096)
	n, err := r.fill(buf)
	r.small = buf[:n]
	if n == 0 {
		return 0, err
	}
	n = copy(p, r.small)
	r.small = r.small[n:]
	return n, nil // fill returns its error again
}

// fill works in p itself: what was held, then what comes. p has room for more than an occurrence.
func (r *scrubReader) fill(p []byte) (int, error) {
	for r.err == nil {
		n := copy(p, r.held)
		m, err := r.src.Read(p[n:])
		n += m
		if err != nil && err != io.EOF {
			// What is held may be the start of a secret; without its rest nobody can tell.
			r.err = err
			r.held = nil
			return r.s.mask(p[:n], false), err
		}
		done := r.s.mask(p[:n], err == io.EOF)
		r.held = append(r.held[:0], p[done:n]...)
		r.err = err
		if done > 0 {
			return done, nil
		}
	}
	return 0, r.err
}

// text masks the secrets in a whole text.
func (s *scrubber) text(t string) string {
	buf := []byte(t)
	s.carry = 0
	s.mask(buf, true)
	s.carry = 0
	return string(buf)
}

// header masks the secrets in the values of header fields, and removes fields that have one in their name.
func (s *scrubber) header(h http.Header) {
	for name, values := range h {
		folded := strings.ToLower(name)
		for _, secret := range s.folded {
			if strings.Contains(folded, secret) {
				delete(h, name)
			}
		}
		for i, v := range values {
			values[i] = s.text(v)
		}
	}
}
