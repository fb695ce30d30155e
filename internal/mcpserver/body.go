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
	smallBody   = 1 << 20         // bodies up to this size are read without asking for room
	bodyTimeout = 5 * time.Minute // for a client to send its body
	roomTimeout = 2 * time.Minute // for a large body to get room
	paceWindow  = 5 * time.Second // in which a body must keep its pace
)

var (
	errUnreadable = rpcErrorf(jsonrpc.CodeInvalidRequest, "the request could not be read")
	errNoRoom     = rpcErrorf(codeUnavailable, "too many large requests at once; send this one again later, or put large files up by the link that upload_file gives when it is called without content")
)

// readBody reads the whole body within the limit. Large ones wait until there is room for them. done must be called
// when the request has been served. If the room is needed for a caller who has less of it, cancel is called.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, cancel func()) (body []byte, done func(), status int, rerr *rpcError) {
	limit := s.cfg.MaxBodyBytes
	tooLarge := rpcErrorf(jsonrpc.CodeInvalidRequest, "the request is larger than %d bytes", limit)
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close")
		return nil, nil, http.StatusRequestEntityTooLarge, tooLarge
	}
	var reader io.Reader = http.MaxBytesReader(w, r.Body, limit)
	rc := http.NewResponseController(w) // not every ResponseWriter has deadlines
	rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	defer rc.SetReadDeadline(time.Time{})
	size := r.ContentLength
	var head []byte
	if size < 0 {
		var err error
		if head, err = io.ReadAll(io.LimitReader(reader, smallBody)); err != nil {
			return nil, nil, http.StatusBadRequest, errUnreadable
		}
		if len(head) == smallBody {
			size = limit
		}
	}
	done = func() {}
	var room *bodyRoom
	if size > smallBody {
		var err error
		if room, err = s.takeRoom(r, size); err != nil {
			return refuseRoom(w)
		}
		rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // waiting for room does not count
		reader = room.watch(reader, func() {
			cancel()
			rc.SetReadDeadline(time.Unix(1, 0))
		})
		done = room.lease.Release
	}
	buf := bytes.NewBuffer(head)
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead) // no reallocation while reading
	}
	_, err := buf.ReadFrom(reader)
	if room != nil && !room.keep(cancel) {
		return refuseRoom(w)
	}
	if err != nil {
		done()
		var mbe *http.MaxBytesError
		if errors.As(err, &mbe) {
			return nil, nil, http.StatusRequestEntityTooLarge, tooLarge
		}
		return nil, nil, http.StatusBadRequest, errUnreadable
	}
	return buf.Bytes(), done, 0, nil
}

func refuseRoom(w http.ResponseWriter) (body []byte, done func(), status int, rerr *rpcError) {
	w.Header().Set("Retry-After", "10")
	w.Header().Set("Connection", "close")
	return nil, nil, http.StatusServiceUnavailable, errNoRoom
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

// bodyRoom is the room for a large body. While it is read, the pool may take it: for a caller who has less room, or, if it
// comes too slowly to be there in time, for anybody.
type bodyRoom struct {
	lease  *share.Lease
	size   int64
	giveUp func()
	read   atomic.Int64 // in this window

	mu    sync.Mutex
	timer *time.Timer // nil: the body has been read
}

// watch returns body, whose pace decides whether the room is offered. giveUp must make reading it fail.
func (b *bodyRoom) watch(body io.Reader, giveUp func()) io.Reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giveUp = giveUp
	b.lease.Yield(giveUp)
	b.timer = time.AfterFunc(paceWindow, b.judge)
	return io.TeeReader(body, b)
}

func (b *bodyRoom) Write(p []byte) (int, error) {
	b.read.Add(int64(len(p)))
	return len(p), nil
}

func (b *bodyRoom) judge() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer == nil {
		return
	}
	if b.read.Swap(0) < b.size/int64(bodyTimeout/paceWindow) {
		b.lease.Idle(b.giveUp)
	} else {
		b.lease.Yield(b.giveUp)
	}
	b.timer.Reset(paceWindow)
}

// keep ends the watch and reports whether the room is still there. From now on cancel is called when the pool takes it.
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
