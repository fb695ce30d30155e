package forward

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// The parts of RFC 1035 that a resolver of a few names needs. A query has one question; anything
// after it, such as EDNS options, is ignored.

const (
	// maxQuery bounds a query. Longer ones are cut or refused.
	maxQuery = 1500
	// maxName bounds a name in a query: 253 characters as text.
	maxName = 255

	headerLen = 12
	typeA     = 1
	typeAAAA  = 28
	classIN   = 1
)

// rcode is the result code of an answer.
type rcode byte

const (
	noError        rcode = 0
	formatError    rcode = 1
	serverFailure  rcode = 2
	nameError      rcode = 3
	notImplemented rcode = 4
)

// lookup returns the address of a name in lower case. isHost says that it may be a host's name, and
// that the query is for an address.
type lookup func(host string, isHost bool) (netip.Addr, rcode)

// answer returns the answer to a query, or nil if it deserves none. An existing name has only an
// IPv4 address. No answer may be cached: the next run may have other rules.
func answer(query []byte, look lookup) []byte {
	if len(query) < headerLen || query[2]&0x80 != 0 { // a response: two resolvers would never stop
		return nil
	}
	if query[2]&0x78 != 0 { // not a standard query
		return reply(query, nil, notImplemented)
	}
	counts := query[4:headerLen]
	if !bytes.Equal(counts[:6], []byte{0, 1, 0, 0, 0, 0}) {
		return reply(query, nil, formatError)
	}
	host, end := parseName(query)
	if end == 0 || len(query) < end+4 {
		return reply(query, nil, formatError)
	}
	question := query[headerLen : end+4]
	kind := binary.BigEndian.Uint16(query[end:])
	if binary.BigEndian.Uint16(query[end+2:]) != classIN {
		return reply(query, question, notImplemented)
	}
	if host == "" {
		return reply(query, question, nameError)
	}
	addr, code := look(host, kind == typeA || kind == typeAAAA)
	a := reply(query, question, code)
	if code == noError && kind == typeA {
		a[7] = 1 // one answer: the name at offset 12, A, IN, no time to live, 4 bytes
		a = append(a, 0xc0, headerLen, 0, typeA, 0, classIN, 0, 0, 0, 0, 0, 4)
		a = append(a, addr.AsSlice()...)
	}
	return a
}

// reply returns an answer without records. It offers recursion: without it, clients take an empty
// answer for a referral and ask again.
func reply(query, question []byte, code rcode) []byte {
	a := make([]byte, headerLen, maxName+64)
	copy(a, query[:2])
	a[2] = 0x80 | query[2]&0x79 // a response, with the query's opcode and its wish for recursion
	a[3] = 0x80 | byte(code)
	if question != nil {
		a[5] = 1
	}
	return append(a, question...)
}

// parseName returns the name of the question in lower case, and where it ends: 0 if it is
// malformed. The name is empty if it is not a host's: no rule has such a name.
func parseName(query []byte) (host string, end int) {
	text := make([]byte, 0, maxName)
	valid := true
	for at := headerLen; at < len(query) && at < headerLen+maxName; {
		length := int(query[at])
		at++
		switch {
		case length == 0 && valid && len(text) > 0:
			return string(text[1:]), at
		case length == 0:
			return "", at
		case length > 63 || at+length > len(query): // a query needs no compression
			return "", 0
		}
		text = append(text, '.')
		for _, c := range query[at : at+length] {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			valid = valid && ('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_')
			text = append(text, c)
		}
		at += length
	}
	return "", 0
}
