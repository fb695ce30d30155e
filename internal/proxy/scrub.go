package proxy

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
)

const (
	// minSecret is the length from which on a text is looked for. Masking shorter ones would spoil every other response.
	minSecret = 6
	// minTruncated is how much of a secret at a body's very end is masked although the rest is missing.
	minTruncated = 8
	maskByte     = '*'
	// maxEscape bounds the spelling of one character: %XX, \u00XX, &#0047;.
	maxEscape = 8
	maxWindow = 64
	hashSize  = 1 << 13
)

// scrubber finds secrets in what a service answers and masks them, byte by byte, so that lengths stay as they are. It looks for each
// secret as it is, in hexadecimal, and in base64 (both alphabets) wherever in a longer text it stands; and for all of these with any
// of their characters spelt as in a URL, in JSON or in HTML.
//
// Plain occurrences are found as by Wu and Manber: of each window, the last three bytes tell how far to skip. One with
// escapes is found from its first escape, since all before that is literal.
type scrubber struct {
	needles [][]byte
	window  int             // the length of the shortest needle, at most maxWindow
	shift   [hashSize]uint8 // by the hash of a window's last three bytes
	within  [256]bool       // bytes of any needle
	first   [256]bool       // bytes with which an occurrence can begin
	hold    int             // no occurrence is longer
	folded  []string        // the secrets in lower case, for names of header fields
	ranges  [][2]int        // of mask, kept to save an allocation
	carry   int             // bytes at the start of the next chunk that belong to an occurrence found before
}

// newScrubber returns nil when there is nothing to look for. A scrubber is for one goroutine and one stream at a time.
func newScrubber(secrets []string) *scrubber {
	s := &scrubber{}
	for _, secret := range secrets {
		if len(secret) < minSecret {
			continue
		}
		s.folded = append(s.folded, strings.ToLower(secret))
		for _, needle := range spellings(secret) {
			if !slices.ContainsFunc(s.needles, func(n []byte) bool { return bytes.Equal(n, needle) }) {
				s.needles = append(s.needles, needle)
			}
		}
	}
	if len(s.needles) == 0 {
		return nil
	}
	s.window = maxWindow
	longest := 0
	for _, n := range s.needles {
		s.window = min(s.window, len(n))
		longest = max(longest, len(n))
		s.first[n[0]] = true
		for _, c := range n {
			s.within[c] = true
		}
	}
	s.hold = longest * maxEscape
	for _, c := range escapes {
		s.first[c] = true
	}
	for i := range s.shift {
		s.shift[i] = uint8(s.window - 2)
	}
	for _, n := range s.needles {
		for i := 2; i < s.window; i++ {
			h := hash(n[i-2], n[i-1], n[i])
			s.shift[h] = min(s.shift[h], uint8(s.window-1-i))
		}
	}
	return s
}

func hash(a, b, c byte) uint { return (uint(a)<<8 ^ uint(b)<<4 ^ uint(c)) & (hashSize - 1) }

// spellings returns the texts by which a secret is found.
func spellings(secret string) [][]byte {
	raw := []byte(secret)
	out := [][]byte{raw}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 { // how many bytes of something else share the first group
			padded := append(make([]byte, before), raw...)
			coded := enc.EncodeToString(padded)
			start := [...]int{0, 2, 3}[before] // characters that depend on those bytes
			end := len(padded) * 8 / 6         // characters that depend on nothing that follows
			out = append(out, []byte(coded[start:end]))
		}
	}
	lower := hex.EncodeToString(raw)
	return append(out, []byte(lower), []byte(strings.ToUpper(lower)))
}

// mask masks every occurrence in buf and returns how many of its first bytes are done with. The others may be the
// start of an occurrence: they have to be at the start of the next buf. At the end of the stream all are done with.
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
		// The bytes behind the tail stay as they are, for another occurrence may begin in them.
		if r[0] < tail {
			carry = max(carry, r[1]-tail)
		}
	}
	s.carry = carry
	return tail
}

func (s *scrubber) findPlain(buf []byte) {
	for i := s.window - 1; i < len(buf); {
		if skip := s.shift[hash(buf[i-2], buf[i-1], buf[i])]; skip > 0 {
			i += int(skip)
			continue
		}
		start := i - s.window + 1
		for _, n := range s.needles {
			if bytes.HasPrefix(buf[start:], n) {
				s.ranges = append(s.ranges, [2]int{start, start + len(n)})
			}
		}
		i++
	}
}

// findEscaped finds occurrences whose first escape begins with mark.
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
		for _, n := range s.needles {
			for k := 0; k <= at; k++ {
				i := bytes.IndexByte(n[min(k, len(n)):], c)
				if i < 0 {
					break
				}
				if k += i; k > at || !bytes.Equal(buf[at-k:at], n[:k]) {
					continue
				}
				if length, whole := follow(n[k+1:], buf[at+width:]); whole {
					s.ranges = append(s.ranges, [2]int{at - k, at + width + length})
				}
			}
		}
	}
}

// unfinished returns where in buf the first occurrence begins that buf ends within, or len(buf); and how many characters of it there are.
func (s *scrubber) unfinished(buf []byte) (start, matched int) {
	for at := max(0, len(buf)-s.hold); at < len(buf); at++ {
		if !s.first[buf[at]] {
			continue
		}
		best := -1
		for _, n := range s.needles {
			if matched, whole := follow(n, buf[at:]); !whole && matched >= 0 {
				best = max(best, matched)
			}
		}
		if best >= 0 {
			return at, best
		}
	}
	return len(buf), 0
}

// follow reads needle, in any spelling, at the start of buf. If it is there whole, n is its length in buf. If buf ends
// before it does, n is how many of its characters there are; if buf says something else, -1.
func follow(needle, buf []byte) (n int, whole bool) {
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
