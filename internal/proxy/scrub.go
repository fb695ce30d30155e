package proxy

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const (
	// minSecret is the length of the shortest secret to mask. Shorter ones occur everywhere.
	minSecret = 6
	// minTruncated is how much of a secret is masked at the end of a body that cuts the secret off.
	minTruncated = 8
	maskByte     = '*'
	// maxEscape bounds the length of one escaped character: %XX, \u00XX, &#0047;.
	maxEscape = 8
	maxWindow = 64
	hashBits  = 13
	hashSize  = 1 << hashBits
)

// scrubber masks secrets in one stream, byte by byte, so that lengths stay the same. It finds them
// as they are, in hexadecimal and base64, and escaped as in URLs, JSON or HTML. For the algorithm,
// see docs/scrubbing.md.
type scrubber struct {
	*needles
	ranges [][2]int // of mask, kept to save an allocation
	carry  int      // bytes at the start of the next chunk that belong to an occurrence found before
}

// needles are the encoded forms of a credential's secrets. They are immutable and shared by
// scrubbers.
type needles struct {
	secrets []string
	all     [][]byte
	window  int             // the length of the shortest needle, at most maxWindow
	shift   [hashSize]uint8 // by the hash of a window's last three bytes
	within  [256]bool       // bytes of any needle
	first   [256]bool       // bytes with which an occurrence can begin
	hold    int             // the length of the longest possible occurrence
	folded  []string        // the needles in lower case, for names of header fields
}

// scrubber returns a scrubber for the secrets of a credential, or nil if they are too short to
// mask. It reuses the needles of the previous call if the secrets are the same.
func (s *service) scrubber(secrets []string) *scrubber {
	n := s.needles.Load()
	if n == nil || !slices.Equal(n.secrets, secrets) {
		n = newNeedles(secrets)
		s.needles.Store(n)
	}
	if len(n.all) == 0 {
		return nil
	}
	return &scrubber{needles: n}
}

func newNeedles(secrets []string) *needles {
	s := &needles{secrets: slices.Clone(secrets), window: maxWindow}
	for _, secret := range secrets {
		if len(secret) < minSecret {
			continue
		}
		for _, n := range encodings(secret) {
			if slices.ContainsFunc(s.all, func(o []byte) bool { return bytes.Equal(o, n) }) {
				continue
			}
			s.all = append(s.all, n)
			s.folded = append(s.folded, strings.ToLower(string(n)))
			s.window = min(s.window, len(n))
			s.hold = max(s.hold, len(n)*maxEscape)
			s.first[n[0]] = true
			for _, c := range n {
				s.within[c] = true
			}
		}
	}
	for _, c := range escapes {
		s.first[c] = true
	}
	for i := range s.shift {
		s.shift[i] = uint8(s.window - 2)
	}
	for _, n := range s.all {
		for i := 2; i < s.window; i++ {
			h := hash(uint32(n[i-2])<<8 | uint32(n[i-1])<<16 | uint32(n[i])<<24)
			s.shift[h] = min(s.shift[h], uint8(s.window-1-i))
		}
	}
	return s
}

// hash hashes the upper three of four bytes.
func hash(four uint32) uint32 { return (four >> 8 * 0x9E3779B1) >> (32 - hashBits) }

// encodings returns the forms in which a secret is searched for.
func encodings(secret string) [][]byte {
	raw := []byte(secret)
	out := [][]byte{raw}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 { // bytes of other text that share the first group
			padded := append(make([]byte, before), raw...)
			coded := enc.EncodeToString(padded)
			start := [...]int{0, 2, 3}[before] // skip characters that depend on the text before
			end := len(padded) * 8 / 6         // and those that depend on the text behind
			out = append(out, []byte(coded[start:end]))
		}
	}
	lower := hex.EncodeToString(raw)
	out = append(out, []byte(lower), []byte(strings.ToUpper(lower)))
	// These also find a secret that is escaped twice (a link in a link, JSON in JSON): it is an
	// escaped form of one that is escaped once.
	quoted, err := json.Marshal(secret)
	if err != nil {
		panic(err) // strings always marshal
	}
	for _, once := range []string{
		url.QueryEscape(secret), lowerEscapes(url.QueryEscape(secret)), url.PathEscape(secret), lowerEscapes(url.PathEscape(secret)),
		string(quoted[1 : len(quoted)-1]), strings.ReplaceAll(secret, "/", `\/`),
	} {
		if once != secret {
			out = append(out, []byte(once))
		}
	}
	return out
}

// lowerEscapes changes %2F to %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return string(b)
}

// mask masks every occurrence in buf. It returns how many bytes are final: the others may start an
// occurrence, and the next buf must start with them. At the end of the stream all are final.
func (s *scrubber) mask(buf []byte, end bool) (done int) {
	s.ranges = s.ranges[:0]
	if s.carry > 0 {
		s.ranges = append(s.ranges, [2]int{0, min(s.carry, len(buf))})
	}
	s.findPlain(buf)
	for _, c := range escapes {
		s.findEscaped(buf, c)
	}
	tail, matched := s.unfinished(buf)
	if end {
		if matched >= minTruncated {
			s.ranges = append(s.ranges, [2]int{tail, len(buf)})
		}
		tail = len(buf)
	}
	carry := max(0, s.carry-tail)
	for _, r := range s.ranges {
		for i := r[0]; i < min(r[1], tail); i++ {
			buf[i] = maskByte
		}
		// Keep the bytes after the tail, since another occurrence may begin in them.
		if r[0] < tail {
			carry = max(carry, r[1]-tail)
		}
	}
	s.carry = carry
	return tail
}

// findPlain finds occurrences without escapes.
func (s *scrubber) findPlain(buf []byte) {
	skipAt := func(i int) int { return int(s.shift[hash(binary.LittleEndian.Uint32(buf[i-3:]))]) } // i >= minSecret-1
	farthest := s.window - 2
	for i := s.window - 1; i < len(buf); {
		// Four independent lookups at a time, since matches are rare.
		for i+3*farthest < len(buf) &&
			skipAt(i)&skipAt(i+farthest)&skipAt(i+2*farthest)&skipAt(i+3*farthest) == farthest {
			i += 4 * farthest
		}
		if i >= len(buf) {
			return
		}
		if skip := skipAt(i); skip > 0 {
			i += skip
			continue
		}
		start := i - s.window + 1
		for _, n := range s.all {
			if bytes.HasPrefix(buf[start:], n) {
				s.ranges = append(s.ranges, [2]int{start, start + len(n)})
			}
		}
		i++
	}
}

// findEscaped finds occurrences with a first escape that begins with mark. The text before it is
// literal.
func (s *scrubber) findEscaped(buf []byte, mark byte) {
	for at := 0; ; at++ {
		next := bytes.IndexByte(buf[at:], mark)
		if next < 0 {
			return
		}
		at += next
		c, width := decodeEscape(buf[at:])
		if width <= 0 || !s.within[c] {
			continue
		}
		for _, n := range s.all {
			for k := 0; k <= at; k++ {
				i := bytes.IndexByte(n[min(k, len(n)):], c)
				if i < 0 {
					break
				}
				if k += i; k > at || !bytes.Equal(buf[at-k:at], n[:k]) {
					continue
				}
				if length, whole := matchEscaped(n[k+1:], buf[at+width:]); whole {
					s.ranges = append(s.ranges, [2]int{at - k, at + width + length})
				}
			}
		}
	}
}

// unfinished returns the start of the first occurrence that the end of buf cuts off, or len(buf),
// and how many characters of it buf has.
func (s *scrubber) unfinished(buf []byte) (start, matched int) {
	for at := max(0, len(buf)-s.hold); at < len(buf); at++ {
		if !s.first[buf[at]] {
			continue
		}
		best := -1
		for _, n := range s.all {
			if matched, whole := matchEscaped(n, buf[at:]); !whole && matched >= 0 {
				best = max(best, matched)
			}
		}
		if best >= 0 {
			return at, best
		}
	}
	return len(buf), 0
}

// matchEscaped matches needle, with any escapes, at the start of buf. On a whole match, n is its
// length in buf. If buf ends first, n is the number of matched characters. On a mismatch, n is -1.
func matchEscaped(needle, buf []byte) (n int, whole bool) {
	i := 0
	for k, want := range needle {
		if i == len(buf) {
			return k, false
		}
		if isEscape(buf[i]) {
			switch c, width := decodeEscape(buf[i:]); {
			case width > 0 && c == want:
				i += width
				continue
			case width < 0:
				return k, false
			}
		}
		if buf[i] != want {
			return -1, false
		}
		i++
	}
	return i, true
}

// scrubReader reads src with the secrets masked. It holds back only what may start a secret, so
// that it does not delay streams.
type scrubReader struct {
	src   io.Reader
	s     *scrubber
	held  []byte // may start a secret
	small []byte // final, for callers with small buffers
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
	if len(p) > r.s.hold { // room for held and more
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
	return n, nil // the next fill returns err
}

// fill reads into p, after the held bytes, and masks there. p must be longer than s.hold.
func (r *scrubReader) fill(p []byte) (int, error) {
	for r.err == nil {
		n := copy(p, r.held)
		m, err := r.src.Read(p[n:])
		n += m
		if err != nil && err != io.EOF {
			// Drop what may be the start of a secret.
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

// text masks the secrets in a text.
func (s *scrubber) text(t string) string {
	buf := []byte(t)
	s.carry = 0
	s.mask(buf, true)
	s.carry = 0
	return string(buf)
}

// header masks secrets in the values of header fields, and removes fields with a secret in their
// name.
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
