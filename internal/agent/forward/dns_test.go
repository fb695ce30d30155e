package forward

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
)

var known = netip.MustParseAddr("127.66.1.2")

// onlyDB knows one name. It fails the test on a name that is not a host's in lower case.
func onlyDB(t testing.TB) lookup {
	return func(host string, _ bool) (netip.Addr, rcode) {
		if host == "" || len(host) > 253 || strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.Contains(host, "..") {
			t.Errorf("a lookup of %q", host)
		}
		if host == "db.example.com" || host == "my_db.example.com" {
			return known, noError
		}
		return netip.Addr{}, nameError
	}
}

// query builds a query with one question. Labels are separated by slashes.
func query(labels string, kind uint16) []byte {
	q := []byte{0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for l := range strings.SplitSeq(labels, "/") {
		q = append(append(q, byte(len(l))), l...)
	}
	q = binary.BigEndian.AppendUint16(append(q, 0), kind)
	return binary.BigEndian.AppendUint16(q, classIN)
}

func TestAnswer(t *testing.T) {
	edit := func(at int, to byte) []byte {
		q := query("db/example/com", typeA)
		q[at] = to
		return q
	}
	long := strings.Repeat("a", 63)
	for name, tc := range map[string]struct {
		query   []byte
		code    rcode
		answers int // -1: no answer at all
	}{
		"a name":            {query("db/example/com", typeA), noError, 1},
		"mixed case":        {query("dB/eXAMPLE/cOM", typeA), noError, 1},
		"with options":      {append(edit(11, 1), 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0), noError, 1},
		"AAAA":              {query("db/example/com", typeAAAA), noError, 0},
		"TXT":               {query("db/example/com", 16), noError, 0},
		"ANY":               {query("db/example/com", 255), noError, 0},
		"another name":      {query("example/com", typeA), nameError, 0},
		"the root":          {append(append([]byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 0), 0, 1, 0, 1), nameError, 0},
		"a dot in a label":  {query("db.example/com", typeA), nameError, 0},
		"NUL in a label":    {query("db\x00/example/com", typeA), nameError, 0},
		"a NUL at the end":  {query("db/example/com\x00", typeA), nameError, 0},
		"underscore":        {query("my_db/example/com", typeA), noError, 1},
		"high bytes":        {query("d\xc3\xa4/example/com", typeA), nameError, 0},
		"253 characters":    {query(long+"/"+long+"/"+long+"/"+long[:61], typeA), nameError, 0},
		"254 characters":    {query(long+"/"+long+"/"+long+"/"+long[:62], typeA), formatError, 0},
		"a label of 64":     {query(long+"a/com", typeA), formatError, 0},
		"a pointer":         {edit(12, 0xc0), formatError, 0},
		"a pointer loop":    {append([]byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 0xc0, 12, 0, 1, 0, 1), formatError, 0},
		"no question":       {edit(5, 0), formatError, 0},
		"two questions":     {edit(5, 2), formatError, 0},
		"256 questions":     {edit(4, 1), formatError, 0},
		"an answer":         {edit(7, 1), formatError, 0},
		"an authority":      {edit(9, 1), formatError, 0},
		"a response":        {edit(2, 0x81), 0, -1},
		"an update":         {edit(2, 5<<3), notImplemented, 0},
		"another class":     {edit(len(query("db/example/com", typeA))-1, 3), notImplemented, 0},
		"without a class":   {query("db/example/com", typeA)[:30], formatError, 0},
		"without an end":    {query("db/example/com", typeA)[:20], formatError, 0},
		"half a header":     {query("db/example/com", typeA)[:11], 0, -1},
		"nothing":           {nil, 0, -1},
		"1500 empty labels": {append([]byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, bytes.Repeat([]byte{1, 'a'}, 700)...), formatError, 0},
	} {
		a := answer(tc.query, onlyDB(t))
		if tc.answers < 0 {
			if a != nil {
				t.Errorf("%s: % x", name, a)
			}
			continue
		}
		if len(a) < headerLen {
			t.Errorf("%s: % x", name, a)
			continue
		}
		if got := rcode(a[3] & 15); got != tc.code || int(a[7]) != tc.answers || !bytes.Equal(a[:2], tc.query[:2]) || a[2]&0x80 == 0 {
			t.Errorf("%s: code %d, % x; want %d", name, got, a, tc.code)
		}
		if tc.answers == 1 && !bytes.HasSuffix(a, []byte{0, 0, 0, 0, 0, 4, 127, 66, 1, 2}) {
			t.Errorf("%s: % x", name, a)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(query("db/example/com", typeA))
	f.Add(query("db/example/com", typeAAAA)[:20])
	f.Add([]byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, q []byte) {
		before := bytes.Clone(q)
		a := answer(q, onlyDB(t))
		if !bytes.Equal(q, before) {
			t.Error("the query was changed")
		}
		if a == nil {
			return
		}
		if len(a) < headerLen || len(a) > 512 || !bytes.Equal(a[:2], q[:2]) || a[2]&0x80 == 0 {
			t.Errorf("% x", a)
		}
		if question := a[headerLen : len(a)-16*int(a[7])]; !bytes.HasPrefix(q[headerLen:], question) {
			t.Errorf("another question: % x", a)
		}
	})
}
