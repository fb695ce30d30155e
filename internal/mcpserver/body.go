package mcpserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"mcp-code-sandbox/internal/share"
)

const (
	smallBody   = 1 << 20         // bytes that are read without a lease
	bodyTimeout = 5 * time.Minute // for a client to send its body
	roomTimeout = 2 * time.Minute // for a large body to get its lease
	paceWindow  = 5 * time.Second // interval at which the pace of a large body is checked
)

// readBody reads the whole body within the limit. Large ones wait for a lease. Call done when the
// request has been served. readBody calls cancel if a caller with fewer bytes needs the room. If it
// fails, it answers the request.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, cancel func()) (body []byte, done func(), ok bool) {
	limit := s.cfg.MaxBodyBytes
	refuse := func(status int, format string, args ...any) ([]byte, func(), bool) {
		writeError(w, status, nil, rpcErrorf(jsonrpc.CodeInvalidRequest, format, args...))
		return nil, nil, false
	}
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close")
		return refuse(http.StatusRequestEntityTooLarge, "the request is larger than %d bytes", limit)
	}
	var reader io.Reader = http.MaxBytesReader(w, r.Body, limit)
	rc := http.NewResponseController(w) // not every ResponseWriter has deadlines
	rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	defer rc.SetReadDeadline(time.Time{})

	size := r.ContentLength
	var buf bytes.Buffer
	if size < 0 {
		switch _, err := io.CopyN(&buf, reader, smallBody); err {
		case nil:
			size = limit
		case io.EOF:
		default:
			return refuse(http.StatusBadRequest, "the request could not be read")
		}
	}
	done = func() {}
	var room *bodyRoom
	if size > smallBody {
		var err error
		if room, err = s.takeRoom(r, size); err != nil {
			refuseRoom(w)
			return nil, nil, false
		}
		rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // waiting for the lease does not count
		reader = room.watch(reader, func() {
			cancel()
			rc.SetReadDeadline(time.Unix(1, 0))
		})
		done = room.lease.Release
	}
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead) // avoids copies while reading
	}
	_, err := buf.ReadFrom(reader)
	if room != nil && !room.keep(cancel) {
		refuseRoom(w)
		return nil, nil, false
	}
	if err != nil {
		done()
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			return refuse(http.StatusRequestEntityTooLarge, "the request is larger than %d bytes", limit)
		}
		return refuse(http.StatusBadRequest, "the request could not be read")
	}
	return buf.Bytes(), done, true
}

func refuseRoom(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	writeUnavailable(w, nil, "too many large requests at once; send this one again later, "+
		"or upload large files with the link that upload_file returns when it is called without content")
}

func (s *Server) takeRoom(r *http.Request, size int64) (*bodyRoom, error) {
	ctx, cancel := context.WithTimeout(r.Context(), roomTimeout)
	defer cancel()
	lease, err := s.large.Acquire(ctx, s.user(r), size)
	if err != nil {
		return nil, err
	}
	return &bodyRoom{lease: lease, size: size}, nil
}

// bodyRoom is the lease for a large body. While the body is read, the pool may take it: for a
// caller with fewer bytes or, if the body is too slow to arrive within bodyTimeout, for any caller.
type bodyRoom struct {
	lease *share.Lease
	size  int64
	abort func()
	read  atomic.Int64 // bytes in this window

	mu    sync.Mutex
	timer *time.Timer // nil: the body has been read
}

// watch returns body and checks its pace while it is read. abort must make reading it fail.
func (b *bodyRoom) watch(body io.Reader, abort func()) io.Reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abort = abort
	b.lease.Yield(abort)
	b.timer = time.AfterFunc(paceWindow, b.checkPace)
	return io.TeeReader(body, b)
}

// Write counts the bytes that are read.
func (b *bodyRoom) Write(p []byte) (int, error) {
	b.read.Add(int64(len(p)))
	return len(p), nil
}

func (b *bodyRoom) checkPace() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer == nil {
		return
	}
	if b.read.Swap(0) < b.size/int64(bodyTimeout/paceWindow) {
		b.lease.Idle(b.abort)
	} else {
		b.lease.Yield(b.abort)
	}
	b.timer.Reset(paceWindow)
}

// keep ends the watch and reports whether the lease still exists. From now on the pool calls cancel
// to take it.
func (b *bodyRoom) keep(cancel func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer.Stop()
	b.timer = nil
	if !b.lease.Busy() {
		return false
	}
	b.lease.Yield(cancel)
	return true
}
