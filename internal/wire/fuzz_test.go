package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"testing"
	"testing/synctest"
)

func FuzzReadFrame(f *testing.F) {
	for _, s := range []string{
		payload(TypeStdout, 2, "hi"),
		payload(TypeData, math.MaxUint64, "data"),
		payload(TypeStderr, 0, ""),
		payload(TypeDisplay, 2, "\x01\x09image/png\x05a.pngdata"),
		payload(TypeDisplay, 2, "\x00\xff"),
		`{"type":"stdout","id":2,"data":"aGk="}`,
		`{"type":"exit","id":2,"exit":{"code":1,"error":"\ud800"}}`,
		`{"type":"run","id":2,"run":{"argv":["sh","{file}"],"env":{"A":"b"},"limits":{"tmp_bytes":1}}}`,
		`{"type":"window","id":1,"credit":1}`,
		`{"TYPE":"pong"}`,
	} {
		f.Add(raw(s), 100)
	}
	f.Add([]byte("\xff\xff\xff\xff"), 1<<16)
	f.Fuzz(func(t *testing.T, in []byte, limit int) {
		limit = min(max(limit, 0), maxFromAgent)
		r := bytes.NewReader(in)
		dec := decoder{r: r, limit: limit}
		got, err := dec.decode()
		took := len(in) - r.Len()
		if took > limit+4 {
			t.Fatalf("read %d bytes with a limit of %d", took, limit)
		}
		if err != nil {
			return
		}
		if want := 4 + int(in[0])<<24 + int(in[1])<<16 + int(in[2])<<8 + int(in[3]); took != want {
			t.Fatalf("read %d bytes of a frame of %d", took, want)
		}
		var enc encoder
		b, err := enc.encode(got, maxToAgent)
		if err != nil {
			t.Fatal(err)
		}
		if got.Type.payload() && !bytes.Equal(b, in[:took]) {
			t.Fatalf("%q was decoded and encoded as %q", in[:took], b)
		}
		dec = decoder{r: bytes.NewReader(b), limit: maxToAgent}
		again, err := dec.decode()
		if err != nil {
			t.Fatalf("%q does not come back: %v", b, err)
		}
		b2, err := new(encoder).encode(again, maxToAgent)
		if err != nil || !bytes.Equal(b, b2) {
			t.Fatalf("%q came back as %q, %v", b, b2, err)
		}
	})
}

// hostile is an agent that sends its bytes and hangs up.
type hostile struct {
	io.Reader
	io.Writer
}

func (hostile) Close() error { return nil }

// Whatever an agent sends, the connection and all its streams end with a reason.
func FuzzServerConn(f *testing.F) {
	seed := func(frames ...string) {
		var in []byte
		for _, s := range frames {
			in = append(in, raw(s)...)
		}
		f.Add(in)
	}
	seed(payload(TypeStdout, 2, "hi"), `{"type":"exit","id":2,"exit":{"code":0}}`)
	seed(`{"type":"dial","id":1}`, payload(TypeData, 1, "hi"), `{"type":"eof","id":1}`, `{"type":"close","id":1}`)
	seed(`{"type":"dial","id":1}`, `{"type":"dial","id":3}`, `{"type":"window","id":3,"credit":9}`, `{"type":"pong"}`)
	seed(`{"type":"exit","id":4,"exit":{"code":0}}`, payload(TypeStdout, 4, "hi"))
	f.Fuzz(func(t *testing.T, in []byte) {
		synctest.Test(t, func(t *testing.T) { // which fails if anything waits for ever
			start := make(chan struct{})
			wait := readFunc(func([]byte) (int, error) { <-start; return 0, io.EOF })
			c := NewConn(hostile{io.MultiReader(wait, bytes.NewReader(in)), io.Discard}, ServerSide,
				func(s *Stream, _ Frame) {
					defer s.Close()
					_, _ = io.Copy(struct{ io.Writer }{s}, s)
				})
			unread, read, dropped := open(t, c, runOne), open(t, c, runOne), open(t, c, runOne)
			_ = dropped.Close()
			close(start)
			for {
				if _, err := read.Recv(bg); err != nil {
					break
				}
			}
			<-c.Done()
			if err := c.Err(); !errors.Is(err, ErrProtocol) && err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Errorf("ended with %v", err)
			}
			if n := queued(unread); n > Window+cost(maxExitError) {
				t.Errorf("%d bytes queued", n)
			}
		})
	})
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
