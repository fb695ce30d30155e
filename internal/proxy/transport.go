package proxy

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"mcp-code-sandbox/internal/closednet"
)

const (
	dialTimeout       = 10 * time.Second
	maxResponseHeader = 256 << 10
	copyBuffer        = 256 << 10
)

// newTransport returns a service's own transport. It uses no proxy from the environment, requests
// no compression and connects to allowed addresses only.
func newTransport(closed *closednet.List, allowed []netip.Prefix) *http.Transport {
	return &http.Transport{
		DialContext:            closed.Dialer(dialTimeout, allowed).DialContext,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    dialTimeout,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
		ReadBufferSize:         64 << 10,
		WriteBufferSize:        64 << 10,
	}
}

// finalOnly hides the values of a request's context from the transport. One of them is
// ReverseProxy's hook that forwards interim (1xx) answers. Their header fields would not be
// scrubbed.
type finalOnly struct{ *http.Transport }

func (t finalOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.Transport.RoundTrip(r.WithContext(noValues{r.Context()}))
}

type noValues struct{ context.Context }

func (noValues) Value(any) any { return nil }

// AfterFunc saves package context a goroutine per call.
func (c noValues) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(c.Context, f) }

// bufferPool holds the buffers for copying bodies.
type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte {
	if p, ok := b.pool.Get().(*[copyBuffer]byte); ok {
		return p[:]
	}
	return make([]byte, copyBuffer)
}

func (b *bufferPool) Put(p []byte) { b.pool.Put((*[copyBuffer]byte)(p)) }
