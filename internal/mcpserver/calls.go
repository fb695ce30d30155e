package mcpserver

import (
	"encoding/json"
	"sync"
)

// calls are a client's open requests. A request that the client has cancelled must not be answered:
// [calls.cancel] runs before the SDK sees the notification, [calls.answer] before an answer is
// sent.
type calls struct {
	mu     sync.Mutex
	byID   map[any]*openCall // by the id's JSON value, a string or a float64
	owed   int               // calls that end by themselves
	waiter chan struct{}     // closed when owed is 0; nil if nothing waits
}

type openCall struct {
	method    string
	cancelled bool
}

// isStream reports whether the call lasts until the client ends it.
func (c *openCall) isStream() bool { return c.method == "subscriptions/listen" }

// track records a message. end removes a call that was not answered. On a nil receiver, track does
// nothing.
func (c *calls) track(m message) (end func()) {
	if c == nil {
		return func() {}
	}
	_ = c.cancel(m)
	if !c.begin(m) {
		return func() {}
	}
	return func() {
		_, sent := c.answer(m.id)
		sent()
	}
}

// begin records a request and reports whether it did. The SDK refuses an id that is in use.
func (c *calls) begin(m message) bool {
	key, ok := idKey(m.id)
	if !ok || !m.isCall() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil {
		c.byID = make(map[any]*openCall)
	}
	if c.byID[key] != nil {
		return false
	}
	call := &openCall{method: m.method}
	c.byID[key] = call
	if !call.isStream() {
		c.owed++
	}
	return true
}

// count returns the number of open requests.
func (c *calls) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byID)
}

// cancel handles a notification that the client no longer wants an answer. late reports that the
// answer was already sent: the SDK must not see the notification, since it might cancel a later
// call with the same id.
func (c *calls) cancel(m message) (late bool) {
	var params struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if m.method != "notifications/cancelled" || json.Unmarshal(m.params, &params) != nil {
		return false // the SDK refuses malformed params
	}
	key, ok := idKey(params.RequestID)
	if !ok {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.byID[key]
	if call != nil && call.method != "initialize" { // must not be cancelled
		call.cancelled = true
	}
	return call == nil
}

// answer removes a request and reports whether its response may be sent. Call sent when it has
// been, or never will be.
func (c *calls) answer(id json.RawMessage) (wanted bool, sent func()) {
	key, _ := idKey(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.byID[key]
	if call == nil {
		return true, func() {}
	}
	delete(c.byID, key) // the client may use the id again as soon as it has the response
	return !call.cancelled, func() { c.settle(call) }
}

func (c *calls) settle(call *openCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !call.isStream() {
		c.owed--
	}
	if c.owed == 0 && c.waiter != nil {
		close(c.waiter)
		c.waiter = nil
	}
}

// answered returns a channel that is closed when every request that ends by itself has been
// answered. Call it once, after the last request.
func (c *calls) answered() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := make(chan struct{})
	if c.owed == 0 {
		close(done)
	} else {
		c.waiter = done
	}
	return done
}

// idKey returns the value of an id that checkID accepts: the same id can be written in several
// ways.
func idKey(id json.RawMessage) (key any, ok bool) {
	if id == nil || json.Unmarshal(id, &key) != nil {
		return nil, false
	}
	switch key.(type) {
	case string, float64:
		return key, true
	}
	return nil, false
}
