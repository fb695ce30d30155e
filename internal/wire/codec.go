package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// keepBuffer is the size of the largest buffer that a connection keeps between frames.
const keepBuffer = maxFromAgent + 4

// encoder makes frames. The zero value is ready.
type encoder struct {
	buf []byte
}

// encode returns the bytes of f, which are valid until the next call.
func (e *encoder) encode(f *Frame, limit int) ([]byte, error) {
	b := append(e.buf[:0], 0, 0, 0, 0)
	if plainPayload(f.Type) && f.fields() == hasID|hasData {
		// The same bytes as encoding/json, many times faster: all output of programs goes this way.
		b = append(b, `{"type":"`...)
		b = append(b, f.Type...)
		b = append(b, `","id":`...)
		b = strconv.AppendUint(b, f.ID, 10)
		b = append(b, `,"data":"`...)
		b = base64.StdEncoding.AppendEncode(b, f.Data)
		b = append(b, `"}`...)
	} else {
		j, err := json.Marshal(f)
		if err != nil {
			return nil, fmt.Errorf("wire: encode %s: %w", f.Type, err)
		}
		b = append(b, j...)
	}
	if e.buf = b; cap(b) > keepBuffer {
		e.buf = nil
	}
	n := len(b) - 4
	if n > limit {
		return nil, fmt.Errorf("wire: a %s frame of %d bytes is over the limit of %d", f.Type, n, limit)
	}
	binary.BigEndian.PutUint32(b, uint32(n))
	return b, nil
}

// decoder reads frames of at most limit bytes.
type decoder struct {
	r     io.Reader
	limit int
	buf   []byte
}

// decode reads one frame and no byte more. The frame shares no memory with the decoder.
func (d *decoder) decode() (*Frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(d.r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || uint64(n) > uint64(d.limit) {
		return nil, fmt.Errorf("%w: frame of %d bytes (limit %d)", ErrProtocol, n, d.limit)
	}
	b := d.buf
	if int(n) > cap(b) {
		b = make([]byte, n)
		if n <= keepBuffer {
			d.buf = b
		}
	}
	b = b[:n]
	if _, err := io.ReadFull(d.r, b); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	f, ok := parsePayload(b)
	if !ok {
		var err error
		if f, err = parse(b); err != nil {
			return nil, fmt.Errorf("%w: %v", ErrProtocol, err)
		}
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrProtocol, err)
	}
	return f, nil
}

func parse(b []byte) (*Frame, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	f := new(Frame)
	if err := dec.Decode(f); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("data after the frame's JSON")
	}
	return f, nil
}

// parsePayload parses exactly the bytes that encode writes for plain payload. Everything that it
// accepts, parse accepts with the same result.
func parsePayload(b []byte) (*Frame, bool) {
	b, ok := bytes.CutPrefix(b, []byte(`{"type":"`))
	if !ok {
		return nil, false
	}
	var t Type
	for _, t = range []Type{TypeStdout, TypeStderr, TypeData} {
		if len(b) > len(t) && string(b[:len(t)]) == string(t) {
			break
		}
	}
	if b, ok = bytes.CutPrefix(b, []byte(t+`","id":`)); !ok {
		return nil, false
	}
	digits, b, ok := bytes.Cut(b, []byte(`,"data":"`))
	if !ok || len(digits) == 0 || digits[0] < '1' || digits[0] > '9' { // JSON has no leading zero, no sign
		return nil, false
	}
	id, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return nil, false
	}
	b, ok = bytes.CutSuffix(b, []byte(`"}`))
	if !ok || bytes.IndexByte(b, '\r') >= 0 || bytes.IndexByte(b, '\n') >= 0 { // base64 would skip them
		return nil, false
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(b)))
	n, err := base64.StdEncoding.Decode(data, b)
	if err != nil {
		return nil, false
	}
	return &Frame{Type: t, ID: id, Data: data[:n]}, true
}

func plainPayload(t Type) bool { return t == TypeStdout || t == TypeStderr || t == TypeData }
