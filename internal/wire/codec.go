package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// payloadTypes are the types whose frames are binary, because base64 took most of the time of a
// transfer; see docs/internals.md. The first byte of such a frame is the index of its type. JSON
// begins with "{".
var payloadTypes = [...]Type{1: TypeStdout, 2: TypeStderr, 3: TypeDisplay, 4: TypeData}

// payloadHead is the size of code and id.
const payloadHead = 1 + 8

// keepBuffer is the size of the largest buffer that a connection keeps between frames.
const keepBuffer = 4 + maxFromAgent

// encoder makes frames. The zero value is ready.
type encoder struct {
	buf []byte
}

// encode returns the bytes of f, which are valid until the next call.
func (e *encoder) encode(f *Frame, limit int) ([]byte, error) {
	b := append(e.buf[:0], 0, 0, 0, 0)
	if f.Type.payload() {
		b = appendPayload(b, f)
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

// appendPayload appends a frame that check has accepted.
func appendPayload(b []byte, f *Frame) []byte {
	for code, t := range payloadTypes {
		if t == f.Type {
			b = append(b, byte(code))
		}
	}
	b = binary.BigEndian.AppendUint64(b, f.ID)
	if f.Type == TypeDisplay {
		more := byte(0)
		if f.More {
			more = 1
		}
		b = append(append(b, more, byte(len(f.MIME))), f.MIME...)
		b = append(append(b, byte(len(f.File))), f.File...)
	}
	return append(b, f.Data...)
}

// decoder reads frames of at most limit bytes.
type decoder struct {
	r     io.Reader
	limit int
	buf   []byte // of JSON
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
	b, err := d.read(int(n))
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	parse := parseJSON
	if isPayload(b[0]) {
		parse = parsePayload
	}
	f, err := parse(b)
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrProtocol, err)
	}
	return f, nil
}

// read returns the n bytes of a frame. The frame keeps those of payload; others are valid until the
// next call.
func (d *decoder) read(n int) ([]byte, error) {
	var first [1]byte
	if _, err := io.ReadFull(d.r, first[:]); err != nil {
		return nil, err
	}
	b := d.buf
	switch {
	case isPayload(first[0]):
		b = newPayload(n)
	case n > cap(b):
		if b = make([]byte, n); n <= keepBuffer {
			d.buf = b
		}
	}
	b = b[:n]
	b[0] = first[0]
	_, err := io.ReadFull(d.r, b[1:])
	return b, err
}

// payloads holds the memory of payload frames that a dial has passed on.
var payloads = sync.Pool{New: func() any { return new([payloadHead + MaxData]byte) }}

func newPayload(n int) []byte {
	if n < MaxData/2 || n > payloadHead+MaxData {
		return make([]byte, n)
	}
	return payloads.Get().(*[payloadHead + MaxData]byte)[:n]
}

// free gives the memory of a payload frame back. Nobody may use its Data afterwards.
func (f *Frame) free() {
	if cap(f.memory) == payloadHead+MaxData {
		payloads.Put((*[payloadHead + MaxData]byte)(f.memory[:cap(f.memory)]))
	}
	f.Data, f.memory = nil, nil
}

func isPayload(code byte) bool { return code > 0 && int(code) < len(payloadTypes) }

func parseJSON(b []byte) (*Frame, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	f := new(Frame)
	if err := dec.Decode(f); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("data after the frame's JSON")
	}
	return f, nil
}

var errShort = errors.New("payload that is cut short")

// parsePayload returns the frame of b, which becomes its memory.
func parsePayload(b []byte) (*Frame, error) {
	if len(b) < payloadHead {
		return nil, errShort
	}
	f := &Frame{Type: payloadTypes[b[0]], ID: binary.BigEndian.Uint64(b[1:]), Data: b[payloadHead:], memory: b}
	if f.Type != TypeDisplay {
		return f, nil
	}
	if len(f.Data) == 0 || f.Data[0] > 1 {
		return nil, errors.New("a display that neither ends nor continues")
	}
	f.More = f.Data[0] == 1
	f.Data = f.Data[1:]
	for _, text := range []*string{&f.MIME, &f.File} {
		if len(f.Data) == 0 || len(f.Data)-1 < int(f.Data[0]) {
			return nil, errShort
		}
		end := 1 + int(f.Data[0])
		*text, f.Data = string(f.Data[1:end]), f.Data[end:]
	}
	return f, nil
}
