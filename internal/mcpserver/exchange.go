package mcpserver

import (
	"context"
	"strconv"
	"sync"
)

// exchangeHeader names, in the headers that the SDK passes on to handlers, the HTTP exchange a call came by. The
// context of a handler is not the request's: in a session it is that of "initialize". No client can send this
// header, since a space is not allowed in a name.
const exchangeHeader = "mcpserver exchange"

// exchanges are the HTTP requests going on.
type exchanges struct {
	mu   sync.Mutex
	last uint64
	live map[string]context.Context
}

// open registers a request by its context. The key is good until closed.
func (x *exchanges) open(ctx context.Context) (key string, closed func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.live == nil {
		x.live = make(map[string]context.Context)
	}
	x.last++
	key = strconv.FormatUint(x.last, 36)
	x.live[key] = ctx
	return key, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.live, key)
	}
}

// attach calls gone once, when the client of the exchange goes away; at once if it has. stop ends the attachment.
func (x *exchanges) attach(key string, gone func()) (stop func() bool) {
	x.mu.Lock()
	ctx, ok := x.live[key]
	x.mu.Unlock()
	if !ok {
		gone()
		return func() bool { return false }
	}
	return context.AfterFunc(ctx, gone)
}
