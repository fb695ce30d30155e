package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// raw is a frame as a hostile agent writes it.
func raw(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func writeRaw(tb testing.TB, w io.Writer, body string) {
	tb.Helper()
	if _, err := w.Write(raw(body)); err != nil {
		tb.Fatal(err)
	}
}

// payload is the body of a frame with payload.
func payload(t Type, id uint64, data string) string {
	code := slices.Index(payloadTypes[:], t)
	return string(binary.BigEndian.AppendUint64([]byte{byte(code)}, id)) + data
}

func zeros(n int) string { return strings.Repeat("\x00", n) }

func TestHello(t *testing.T) {
	var good bytes.Buffer
	if err := WriteHello(&good, "agent v1"); err != nil {
		t.Fatal(err)
	}
	const more = "the next frame"
	r := strings.NewReader(good.String() + more)
	if h, err := ReadHello(r); err != nil || h != (Hello{Version: Version, Agent: "agent v1"}) {
		t.Fatalf("hello = %+v, %v", h, err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != more {
		t.Errorf("left %q, want %q", rest, more)
	}
	if h, err := ReadHello(iotest.OneByteReader(&good)); err != nil || h.Agent != "agent v1" {
		t.Errorf("hello in drips = %+v, %v", h, err)
	}
	if err := WriteHello(io.Discard, strings.Repeat("a", maxHello)); err == nil {
		t.Error("wrote a hello that nobody reads")
	}

	bad := map[string]struct {
		in   string
		want error
	}{
		"nothing":        {"", io.EOF},
		"half a length":  {"\x00\x00", io.ErrUnexpectedEOF},
		"half a frame":   {"\x00\x00\x00\x10{", io.ErrUnexpectedEOF},
		"no frame":       {"\x00\x00\x00\x10", io.ErrUnexpectedEOF},
		"garbage":        {"bash: no such file or directory\n", ErrProtocol},
		"empty":          {"\x00\x00\x00\x00", ErrProtocol},
		"oversize":       {string(binary.BigEndian.AppendUint32(nil, maxHello+1)), ErrProtocol},
		"huge":           {"\xff\xff\xff\xff", ErrProtocol},
		"not JSON":       {string(raw("hello")), ErrProtocol},
		"null":           {string(raw("null")), ErrProtocol},
		"list":           {string(raw("[]")), ErrProtocol},
		"older":          {string(raw(`{"type":"hello","hello":{"version":2,"agent":"a"}}`)), ErrProtocol},
		"newer":          {string(raw(`{"type":"hello","hello":{"version":4,"agent":"a"}}`)), ErrProtocol},
		"no body":        {string(raw(`{"type":"hello"}`)), ErrProtocol},
		"other frame":    {string(raw(`{"type":"pong"}`)), ErrProtocol},
		"more than that": {string(raw(`{"type":"hello","hello":{"version":3},"credit":1}`)), ErrProtocol},
		"unknown field":  {string(raw(`{"type":"hello","hello":{"version":3,"root":true}}`)), ErrProtocol},
		"trailing JSON":  {string(raw(`{"type":"hello","hello":{"version":3}}{}`)), ErrProtocol},
	}
	for name, tt := range bad {
		t.Run(name, func(t *testing.T) {
			if h, err := ReadHello(strings.NewReader(tt.in)); !errors.Is(err, tt.want) {
				t.Errorf("hello = %+v, %v, want %v", h, err, tt.want)
			}
		})
	}
}

// Each of these ends the connection and its run.
func TestHostileAgent(t *testing.T) {
	const (
		exit   = `{"type":"exit","id":2,"exit":{"code":0,"user_us":0,"sys_us":0,"max_rss_bytes":0}}`
		opened = `{"type":"dial","id":1}`
		eof    = `{"type":"eof","id":1}`
		closed = `{"type":"close","id":1}`
	)
	exitOf := func(body string) string { return `{"type":"exit","id":2,"exit":{` + body + `}}` }
	var dials []string
	for i := range maxStreams + 1 {
		dials = append(dials, fmt.Sprintf(`{"type":"dial","id":%d}`, 2*i+1))
	}
	stdout := func(n int) string { return payload(TypeStdout, 2, zeros(n)) }
	display := func(more byte, mime, file string) string {
		return payload(TypeDisplay, 2, string([]byte{more, byte(len(mime))})+mime+string([]byte{byte(len(file))})+file+"data")
	}
	flood := func(n int, f string) (fs []string) {
		for range n {
			fs = append(fs, f)
		}
		return fs
	}
	tests := map[string][]string{
		"unknown type":          {`{"type":"shell","id":2}`},
		"no type":               {`{"id":2}`},
		"null":                  {`null`},
		"not JSON":              {`stdout`},
		"JSON of another shape": {`{"type":["stdout"]}`},
		"unknown field":         {`{"type":"pong","admin":true}`},
		"unknown nested field":  {exitOf(`"code":0,"root":1`)},
		"trailing JSON":         {exit + `{}`},
		"trailing garbage":      {exit + `x`},
		"nested too deep":       {`{"run":` + strings.Repeat(`[`, 30000)},
		"payload in JSON":       {`{"type":"stdout","id":2,"data":"AAAA"}`},
		"MIME type in JSON":     {`{"type":"pong","mime":"a"}`},
		"code 0":                {"\x00" + stdout(1)[1:]},
		"code 5":                {"\x05" + stdout(1)[1:]},
		"code alone":            {stdout(1)[:1]},
		"half an id":            {stdout(1)[:5]},
		"second hello":          {`{"type":"hello","hello":{"version":3,"agent":""}}`},

		"ping":                {`{"type":"ping"}`},
		"pong without ping":   {`{"type":"pong"}`},
		"run":                 {`{"type":"run","id":4,"run":{"argv":["sh"],"limits":{}}}`},
		"run with odd id":     {`{"type":"run","id":3,"run":{"argv":["sh"],"limits":{}}}`},
		"kill":                {`{"type":"kill","id":2}`},
		"interrupt":           {`{"type":"interrupt","id":2}`},
		"data on a run":       {payload(TypeData, 2, "data")},
		"close on a run":      {`{"type":"close","id":2}`},
		"eof on a run":        {`{"type":"eof","id":2}`},
		"stdout on a dial":    {opened, payload(TypeStdout, 1, "data")},
		"exit on a dial":      {opened, `{"type":"exit","id":1,"exit":{}}`},
		"kill on a dial":      {opened, `{"type":"kill","id":1}`},
		"stdout on no id":     {payload(TypeStdout, 0, "data")},
		"a run of the future": {payload(TypeStdout, 4, "data")},

		"dial with id 0":       {`{"type":"dial"}`},
		"dial with even id":    {`{"type":"dial","id":2}`},
		"dial with id in use":  {opened, opened},
		"dial with id of old":  {`{"type":"dial","id":5}`, `{"type":"dial","id":3}`},
		"dial with used id":    {opened, closed, opened},
		"dial with negative":   {`{"type":"dial","id":-1}`},
		"dial with id too big": {`{"type":"dial","id":18446744073709551617}`},
		"dial with fraction":   {`{"type":"dial","id":1.5}`},
		"dial with credit":     {`{"type":"dial","id":1,"credit":1}`},
		"dial to a novel":      {`{"type":"dial","id":1,"host":"` + strings.Repeat("h", maxHost+1) + `"}`},
		"eof with a host":      {opened, `{"type":"eof","id":1,"host":"h:1"}`},
		"257 dials":            dials,

		"exit twice":           {exit, exit},
		"stdout after exit":    {exit, stdout(1)},
		"window after exit":    {exit, `{"type":"window","id":2,"credit":1}`},
		"exit without body":    {`{"type":"exit","id":2}`},
		"exit null":            {`{"type":"exit","id":2,"exit":null}`},
		"exit with credit":     {`{"type":"exit","id":2,"exit":{"code":0},"credit":1}`},
		"exit code -1":         {exitOf(`"code":-1`)},
		"exit code 256":        {exitOf(`"code":256`)},
		"exit signal 65":       {exitOf(`"signal":65`)},
		"exit in the past":     {exitOf(`"user_us":-1`)},
		"exit beyond duration": {exitOf(`"sys_us":9223372036854775807`)},
		"exit negative memory": {exitOf(`"max_rss_bytes":-1`)},
		"exit with a novel":    {exitOf(`"error":"` + strings.Repeat("e", maxExitError+1) + `"`)},

		"data after eof":       {opened, eof, payload(TypeData, 1, "data")},
		"eof twice":            {opened, eof, eof},
		"data after close":     {opened, closed, payload(TypeData, 1, "data")},
		"window after close":   {opened, closed, `{"type":"window","id":1,"credit":1}`},
		"close twice":          {opened, closed, closed},
		"close of nothing":     {closed},
		"empty stdout":         {stdout(0)},
		"stdout without data":  {`{"type":"stdout","id":2}`},
		"too much in a frame":  {stdout(MaxData + 1)},
		"display of nothing":   {payload(TypeDisplay, 2, "")},
		"display without data": {strings.TrimSuffix(display(0, "image/png", ""), "data")},
		"display without file": {payload(TypeDisplay, 2, "\x00\x01m")},
		"display cut in MIME":  {payload(TypeDisplay, 2, "\x00\x05mime")},
		"display cut in file":  {payload(TypeDisplay, 2, "\x00\x01m\xfffile")},
		"display of no UTF-8":  {display(0, "\xff", "")},
		"file of no UTF-8":     {display(0, "image/png", "\xff")},
		"display with a flag":  {display(2, "image/png", "")},

		"credit for nothing":   {opened, `{"type":"window","id":1,"credit":1}`},
		"credit on a run":      {`{"type":"window","id":2,"credit":1}`},
		"no credit":            {opened, `{"type":"window","id":1,"credit":0}`},
		"negative credit":      {opened, `{"type":"window","id":1,"credit":-1}`},
		"credit overflow":      {opened, `{"type":"window","id":1,"credit":9223372036854775807}`},
		"credit beyond int":    {opened, `{"type":"window","id":1,"credit":9223372036854775808}`},
		"window overrun":       flood(Window/MaxData, stdout(MaxData)),
		"overrun in bytes":     flood(Window/cost(1)+1, stdout(1)),
		"overrun on a dial":    append([]string{opened}, flood(Window/MaxData, payload(TypeData, 1, zeros(MaxData)))...),
		"frame over the limit": {strings.Repeat(" ", maxFromAgent) + exit},
	}
	for name, frames := range tests {
		t.Run(name, func(t *testing.T) {
			var in []byte
			for _, f := range frames {
				in = append(in, raw(f)...)
			}
			err, runErr := attack(t, in)
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("connection ended with %v", err)
			}
			if runErr != err && runErr != io.EOF {
				t.Errorf("run ended with %v, connection with %v", runErr, err)
			}
		})
	}
	cut := map[string]struct {
		in   string
		want error
	}{
		"empty frame":      {"\x00\x00\x00\x00", ErrProtocol},
		"huge length":      {"\xff\xff\xff\xff{", ErrProtocol},
		"truncated length": {"\x00\x00", io.ErrUnexpectedEOF},
		"truncated frame":  {string(raw(exit)[:20]), io.ErrUnexpectedEOF},
		"hang-up":          {"", io.EOF},
	}
	for name, tt := range cut {
		t.Run(name, func(t *testing.T) {
			if err, runErr := attack(t, []byte(tt.in)); !errors.Is(err, tt.want) || runErr != err {
				t.Errorf("connection ended with %v, run with %v, want %v", err, runErr, tt.want)
			}
		})
	}
}

// attack has an agent send in and hang up, while the server has a run open and reads neither from
// it nor from any dial. It returns how the connection and the run ended.
func attack(tb testing.TB, in []byte) (conn, run error) {
	tb.Helper()
	sc, ac := net.Pipe()
	server := NewConn(sc, ServerSide, func(*Stream, Frame) {})
	defer server.Close()
	go func() { _, _ = io.Copy(io.Discard, ac) }()
	s := open(tb, server, runOne)
	_, _ = ac.Write(in)
	_ = ac.Close()
	<-server.Done()
	if n := queued(s); n > Window+cost(maxExitError) {
		tb.Errorf("%d bytes queued", n)
	}
	for {
		if _, err := s.Recv(bg); err != nil {
			return server.Err(), err
		}
	}
}

// queued returns about how much memory the frames in the queue of s take.
func queued(s *Stream) int {
	n := 0
	for _, f := range s.queue {
		n += cost(len(f.Data) + len(f.MIME) + len(f.File))
	}
	return n
}

// Filling the window exactly is allowed.
func TestWholeWindow(t *testing.T) {
	var in []byte
	for range Window / cost(1) {
		in = append(in, raw(payload(TypeStdout, 2, "x"))...)
	}
	if err, _ := attack(t, in); err != io.EOF {
		t.Errorf("connection ended with %v", err)
	}
}

// plain hides everything but reading, writing and closing: no deadlines.
type plain struct{ io.ReadWriteCloser }

func TestAgentStopsReading(t *testing.T) {
	for name, wrap := range map[string]func(net.Conn) io.ReadWriteCloser{
		"socket": func(c net.Conn) io.ReadWriteCloser { return c },
		"pipe":   func(c net.Conn) io.ReadWriteCloser { return plain{c} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sc, ac := net.Pipe()
				defer ac.Close()
				server := NewConn(wrap(sc), ServerSide, nil)
				start := time.Now()
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				if err := server.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
					t.Errorf("ping = %v after %v", err, time.Since(start))
				}
				<-server.Done()
				if took := time.Since(start); took != writeTimeout {
					t.Errorf("ended after %v", took)
				}
				if err := server.Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("ended with %v", err)
				}
			})
		})
	}
}

// An agent that never reads cannot block Close.
func TestCloseWhileWriting(t *testing.T) {
	sc, ac := net.Pipe()
	defer ac.Close()
	server := NewConn(sc, ServerSide, nil)
	opened := make(chan error)
	go func() {
		_, err := server.Open(runOne)
		opened <- err
	}()
	if _, err := io.ReadFull(ac, make([]byte, 1)); err != nil { // the write is under way, and stays there
		t.Fatal(err)
	}
	_ = server.Close()
	if err := <-opened; err != ErrClosed {
		t.Errorf("open = %v", err)
	}
}

// An agent that sends without reading gets no credit by having its output thrown away, and costs
// neither memory nor goroutines.
func TestFloodWithoutReading(t *testing.T) {
	sc, ac := net.Pipe()
	defer ac.Close()
	server := NewConn(sc, ServerSide, nil)
	defer server.Close()
	dec := decoder{r: ac, limit: maxToAgent}
	go func() { _, _ = dec.decode() }() // the run, and nothing after it
	s := open(t, server, runOne)
	_ = s.Close()
	before := runtime.NumGoroutine()
	frame := raw(payload(TypeStdout, 2, zeros(MaxData)))
	sent, most := 0, 0
	for ; sent < 100*Window; sent += MaxData {
		if _, err := ac.Write(frame); err != nil {
			break
		}
		most = max(most, runtime.NumGoroutine()-before)
	}
	<-server.Done()
	if err := server.Err(); !errors.Is(err, ErrProtocol) || sent > 2*Window {
		t.Errorf("ended with %v after %d bytes", err, sent)
	}
	if most > 4 {
		t.Errorf("%d goroutines", most)
	}
}

// Nor can it make the server start a goroutine for each dial that it opens and closes. The dial
// whose close is being written no longer counts.
func TestDialsWithoutReading(t *testing.T) {
	sc, ac := net.Pipe()
	defer ac.Close()
	server := NewConn(sc, ServerSide, nil)
	defer server.Close()
	dials := 0
	for ; dials < 10*maxStreams; dials++ {
		id := 2*dials + 1
		in := append(raw(fmt.Sprintf(`{"type":"dial","id":%d}`, id)), raw(fmt.Sprintf(`{"type":"close","id":%d}`, id))...)
		if _, err := ac.Write(in); err != nil {
			break
		}
	}
	<-server.Done()
	if err := server.Err(); !errors.Is(err, ErrProtocol) || dials > maxStreams+2 {
		t.Errorf("ended with %v after %d dials", err, dials)
	}
}

// A frame that arrives byte by byte delays only itself.
func TestSlowDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sc, ac := net.Pipe()
		server := NewConn(sc, ServerSide, nil)
		defer server.Close()
		go func() { _, _ = io.Copy(io.Discard, ac) }()
		s := open(t, server, runOne)
		for _, b := range raw(payload(TypeStdout, 2, "hi")) {
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			if f, err := s.Recv(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("recv = %+v, %v", f, err)
			}
			cancel()
			if _, err := ac.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if f, err := s.Recv(bg); err != nil || string(f.Data) != "hi" {
			t.Errorf("recv = %+v, %v", f, err)
		}
	})
}
