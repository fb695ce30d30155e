package mcpserver

import (
	"context"
	"strconv"
	"sync"

	"mcp-code-sandbox/internal/share"
)

// exchangeHeader names, in the headers that the SDK passes on to handlers, the HTTP exchange a call came by. The
// context of a handler is not the request's: in a session it is that of "initialize". No client can send this
// header, since a space is not allowed in a name.
const exchangeHeader = "mcpserver exchange"

// exchanges are the HTTP requests going on.
type exchanges struct {
	mu   sync.Mutex
	last uint64
	live map[string]exchange
}

// exchange is one of them. Its scope ends when the answer has been sent.
type exchange struct {
	ctx   context.Context
	scope *share.Scope
}

// open registers a request by its context, which abort ends. The key is good until closed.
func (x *exchanges) open(ctx context.Context, abort func()) (key string, closed func()) {
	scope := share.NewScope(abort)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.live == nil {
		x.live = make(map[string]exchange)
	}
	x.last++
	key = strconv.FormatUint(x.last, 36)
	x.live[key] = exchange{ctx, scope}
	return key, func() {
		x.mu.Lock()
		delete(x.live, key)
		x.mu.Unlock()
		scope.End()
	}
}

// scope returns the scope of an exchange, nil if it has ended.
func (x *exchanges) scope(key string) *share.Scope {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.live[key].scope
}

// attach calls gone once, when the client of the exchange goes away; at once if it has. stop ends the attachment.
func (x *exchanges) attach(key string, gone func()) (stop func() bool) {
	x.mu.Lock()
	e, ok := x.live[key]
	x.mu.Unlock()
	if !ok {
		gone()
		return func() bool { return false }
	}
	return context.AfterFunc(e.ctx, gone)
}
