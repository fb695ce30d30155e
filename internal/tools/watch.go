package tools

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/session"
)

const (
	methodListChanged = "notifications/resources/list_changed"
	notifyTimeout     = 10 * time.Second // for one client to accept a notification
)

// activityKey is an experimental capability of clients that show sessions to people: they want to
// know when runs start and end.
const activityKey = "mcp-code-sandbox/activity"

// watchers notifies clients when their caller's list of resources changes: up to protocol version
// 2025-11-25 every initialized client, later those that listen. The SDK itself would notify the
// clients of all callers.
type watchers struct {
	srv  *mcp.Server
	send mcp.MethodHandler // the SDK's handler that sends to a session

	watchRuns atomic.Bool // some client has declared activityKey
	pending   sync.Map    // changes that are about to be sent

	mu      sync.Mutex
	entries map[watchKey]*watcher
}

type watchKey struct {
	session      *mcp.ServerSession
	subscription any // id of the request that listens; nil up to 2025-11-25
}

type watcher struct {
	caller  session.Caller
	runs    bool // also notify about runs
	sending bool
	again   bool // another change came while sending
}

// change is an event to notify the caller's clients about.
type change struct {
	caller session.Caller
	runs   bool // a run started or ended; otherwise files changed
}

func newWatchers(srv *mcp.Server) *watchers {
	w := &watchers{srv: srv, entries: map[watchKey]*watcher{}}
	srv.AddSendingMiddleware(w.sending)
	srv.AddReceivingMiddleware(w.receiving)
	return w
}

// notify sends a change to the caller's clients. It returns at once: a run does not wait for its
// watchers.
func (w *watchers) notify(ch change) {
	if ch.runs && !w.watchRuns.Load() {
		return
	}
	if _, pending := w.pending.LoadOrStore(ch, true); pending {
		return
	}
	go func() {
		w.pending.Delete(ch)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.pruneLocked()
		for key, e := range w.entries {
			switch {
			case e.caller != ch.caller || ch.runs && !e.runs:
			case e.sending:
				e.again = true
			default:
				e.sending = true
				go w.notifyClient(key, e)
			}
		}
	}()
}

// notifyClient notifies one client. It combines changes that come while it is sending.
func (w *watchers) notifyClient(key watchKey, e *watcher) {
	for again := true; again; {
		params := &mcp.ResourceListChangedParams{}
		if key.subscription != nil {
			params.Meta = mcp.Meta{mcp.MetaKeySubscriptionID: key.subscription}
		}
		// The notification belongs to no request, so it goes to the client's own stream. A client
		// without one misses it.
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		_, _ = w.send(ctx, methodListChanged, &mcp.ServerRequest[*mcp.ResourceListChangedParams]{Session: key.session, Params: params})
		cancel()
		w.mu.Lock()
		again, e.again = e.again, false
		e.sending = again
		w.mu.Unlock()
	}
}

// listenKey is the context key of a *listening.
type listenKey struct{}

// listening is a request to listen that is being served.
type listening struct {
	caller session.Caller
	key    watchKey // set when the request is acknowledged
}

// receiving adds clients that initialize or listen.
func (w *watchers) receiving(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req := req.(type) {
		case *mcp.InitializedRequest:
			res, err := next(ctx, method, req)
			caller, callerErr := callerOf(req.Extra)
			params := req.Session.InitializeParams()
			if err == nil && callerErr == nil && params != nil && params.ProtocolVersion >= version20250326 {
				e := &watcher{caller: caller}
				if params.Capabilities != nil {
					_, e.runs = params.Capabilities.Experimental[activityKey]
				}
				w.add(watchKey{session: req.Session}, e)
			}
			return res, err
		case *mcp.SubscriptionsListenRequest:
			caller, err := callerOf(req.Extra)
			if err != nil {
				return nil, err
			}
			l := &listening{caller: caller}
			res, err := next(context.WithValue(ctx, listenKey{}, l), method, req)
			if l.key.session != nil {
				w.remove(l.key)
			}
			return res, err
		}
		return next(ctx, method, req)
	}
}

// sending adds a client that listens when the SDK acknowledges its request. Only the
// acknowledgement has its id.
func (w *watchers) sending(next mcp.MethodHandler) mcp.MethodHandler {
	w.send = next
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		l, ok := ctx.Value(listenKey{}).(*listening)
		ack, isAck := req.GetParams().(*mcp.SubscriptionsAcknowledgedParams)
		ss, isServer := req.GetSession().(*mcp.ServerSession)
		if ok && isAck && isServer && err == nil && ack.Notifications.ResourcesListChanged {
			l.key = watchKey{session: ss, subscription: ack.Meta[mcp.MetaKeySubscriptionID]}
			w.add(l.key, &watcher{caller: l.caller})
		}
		return res, err
	}
}

func (w *watchers) add(key watchKey, e *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pruneLocked()
	if w.entries[key] == nil {
		w.entries[key] = e
		w.watchRuns.Store(w.watchRuns.Load() || e.runs)
	}
}

func (w *watchers) remove(key watchKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.entries, key)
}

// pruneLocked removes clients that are gone.
func (w *watchers) pruneLocked() {
	live := map[*mcp.ServerSession]bool{}
	for ss := range w.srv.Sessions() {
		live[ss] = true
	}
	watchRuns := false
	for key, e := range w.entries {
		if !live[key.session] {
			delete(w.entries, key)
			continue
		}
		watchRuns = watchRuns || e.runs
	}
	w.watchRuns.Store(watchRuns)
}
