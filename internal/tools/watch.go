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
	notifyTimeout     = 10 * time.Second // for one client to take a notification
)

// watchers are the clients that are told when the list of resources changes: up to protocol version 2025-11-25 every one that
// has initialized, from 2026-07-28 on those that listen. A client hears of its own caller's files alone; one that has declared
// activityKey is also told when runs start and end. The SDK would tell every session, so it is not asked to.
type watchers struct {
	srv  *mcp.Server
	send mcp.MethodHandler // the SDK's way to a session

	interested atomic.Bool // somebody may want to know of runs

	pending sync.Map // changes that clients are about to be told of

	mu      sync.Mutex
	entries map[watchKey]*watcher
}

type watchKey struct {
	session      *mcp.ServerSession
	subscription any // the id of the request that listens; nil up to 2025-11-25
}

// activityKey is an experimental capability of clients that show a session to people: they look again when a run starts or ends.
const activityKey = "mcp-code-sandbox/activity"

// change is what watchers are told of.
type change struct {
	caller session.Caller
	runs   bool // and not files
}

type watcher struct {
	caller session.Caller
	runs   bool // it wants to know of runs, too
	busy   bool // a notification is on its way
	again  bool // and another must follow
}

func newWatchers(srv *mcp.Server) *watchers {
	w := &watchers{srv: srv, entries: map[watchKey]*watcher{}}
	srv.AddSendingMiddleware(w.sending)
	srv.AddReceivingMiddleware(w.receiving)
	return w
}

// listenKey is where the context of a request to listen has its *listening.
type listenKey struct{}

type listening struct {
	caller session.Caller
	key    watchKey // set once the client has been told that it is heard
}

// receiving learns of clients and whose they are.
func (w *watchers) receiving(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req := req.(type) {
		case *mcp.InitializedRequest:
			res, err := next(ctx, method, req)
			caller, callerErr := callerOf(req.Extra)
			declared := req.Session.InitializeParams()
			if err == nil && callerErr == nil && declared != nil && declared.ProtocolVersion >= version20250326 {
				_, runs := declaredExperimental(declared)[activityKey]
				w.add(watchKey{session: req.Session}, &watcher{caller: caller, runs: runs})
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

// sending sees the acknowledgement of a request to listen, which has its id.
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

func declaredExperimental(p *mcp.InitializeParams) map[string]any {
	if p.Capabilities == nil {
		return nil
	}
	return p.Capabilities.Experimental
}

func (w *watchers) add(key watchKey, e *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pruneLocked()
	if w.entries[key] == nil {
		w.entries[key] = e
		w.interested.Store(w.interested.Load() || e.runs)
	}
}

func (w *watchers) remove(key watchKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.entries, key)
}

// pruneLocked drops clients that have gone.
func (w *watchers) pruneLocked() {
	live := map[*mcp.ServerSession]bool{}
	for ss := range w.srv.Sessions() {
		live[ss] = true
	}
	interested := false
	for key, e := range w.entries {
		if !live[key.session] {
			delete(w.entries, key)
			continue
		}
		interested = interested || e.runs
	}
	w.interested.Store(interested)
}

// changed has the caller's clients told. It costs the run that changed something the same, however many clients there are.
func (w *watchers) changed(caller session.Caller, runs bool) {
	what := change{caller, runs}
	if runs && !w.interested.Load() {
		return
	}
	if _, pending := w.pending.LoadOrStore(what, true); pending {
		return
	}
	go func() {
		w.pending.Delete(what)
		w.spread(what)
	}()
}

// spread tells the caller's clients, without waiting for them. Changes that come while a client is being told are told
// together.
func (w *watchers) spread(what change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pruneLocked()
	for key, e := range w.entries {
		switch {
		case e.caller != what.caller || what.runs && !e.runs:
		case e.busy:
			e.again = true
		default:
			e.busy = true
			go w.tell(key, e)
		}
	}
}

func (w *watchers) tell(key watchKey, e *watcher) {
	for again := true; again; {
		params := &mcp.ResourceListChangedParams{}
		if key.subscription != nil {
			params.Meta = mcp.Meta{mcp.MetaKeySubscriptionID: key.subscription}
		}
		// A fresh context: the notification belongs to no request, and goes to the client's own stream.
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		// A client that is gone, or has no stream open, misses it.
		_, _ = w.send(ctx, methodListChanged, &mcp.ServerRequest[*mcp.ResourceListChangedParams]{Session: key.session, Params: params})
		cancel()
		w.mu.Lock()
		again, e.again = e.again, false
		e.busy = again
		w.mu.Unlock()
	}
}
