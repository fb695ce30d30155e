package mcpserver

import (
	"context"
	"strconv"
	"sync"

	"mcp-code-sandbox/internal/share"
)

// exchangeHeader carries the key of an exchange through the SDK to handlers. Their context is not
// the request's: in a session, it is the context of "initialize". No client can send this header,
// since a name must not contain a space.
const exchangeHeader = "mcpserver exchange"

// exchange is one HTTP request that the SDK is serving.
type exchange struct {
	ctx   context.Context
	scope *share.Scope // ends when the answer has been sent
	lease *share.Lease // for the session that the request initializes; nil for other requests

	isStream bool // it lasts until the client or the server ends it
}

// exchanges are the current exchanges by key.
type exchanges struct {
	mu    sync.Mutex
	last  uint64
	live  map[string]*exchange
	ended chan struct{} // closed when an exchange ends; nil if nobody waits
}

// open adds an exchange. end removes it, and releases the lease if no session has taken it.
func (x *exchanges) open(e *exchange) (key string, end func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.live == nil {
		x.live = make(map[string]*exchange)
	}
	x.last++
	key = strconv.FormatUint(x.last, 36)
	x.live[key] = e
	return key, func() {
		if lease := x.takeLease(e); lease != nil {
			lease.Release()
		}
		x.mu.Lock()
		delete(x.live, key)
		if x.ended != nil {
			close(x.ended)
			x.ended = nil
		}
		x.mu.Unlock()
		e.scope.End()
	}
}

// drain waits until every exchange that ends by itself has ended, or ctx is done.
func (x *exchanges) drain(ctx context.Context) {
	for {
		x.mu.Lock()
		owed := false
		for _, e := range x.live {
			owed = owed || !e.isStream
		}
		if owed && x.ended == nil {
			x.ended = make(chan struct{})
		}
		ended := x.ended
		x.mu.Unlock()
		if !owed {
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

// get returns nil if the exchange has ended.
func (x *exchanges) get(key string) *exchange {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.live[key]
}

// takeLease returns the lease of an exchange once; nil for a nil exchange.
func (x *exchanges) takeLease(e *exchange) *share.Lease {
	if e == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	lease := e.lease
	e.lease = nil
	return lease
}
