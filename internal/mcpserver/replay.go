package mcpserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// lightMessage is what a Relay reads of a message. The server checks the rest.
type lightMessage struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		RequestID json.RawMessage `json:"requestId"`
		URI       string          `json:"uri"`
	} `json:"params"`
	Error json.RawMessage `json:"error"`
}

func (m lightMessage) isCall() bool     { return m.Method != "" && m.ID != nil }
func (m lightMessage) isResponse() bool { return m.Method == "" && m.ID != nil }

// parseLight returns what it can read. The server answers an invalid message.
func parseLight(line []byte) (m lightMessage) {
	if json.Unmarshal(line, &m) != nil && !json.Valid(line) {
		return lightMessage{}
	}
	return m
}

// maxReplayed bounds what a Relay remembers of its client: open requests, and state to replay.
const maxReplayed = 10_000

// replay is what a client has set up, to be set up again in another server.
type replay struct {
	initialize  []byte               // the request; nil in protocol versions without it
	initialized []byte               // the notification
	state       map[string][]byte    // requests that were answered with success, by what they set
	open        map[any]*relayedCall // the client's open requests, by id
	asked       map[any]bool         // the server's open requests, by id
	acks        int                  // acknowledgements of replayed streams; the client has seen them
	count       int                  // requests replayed so far
}

type relayedCall struct {
	openCall
	id   json.RawMessage
	line []byte // to be replayed; nil: never
	sets string // the key in replay.state; empty: it sets nothing
	own  bool   // a replayed request; the client does not expect the answer
}

// sent records a message of the client, and reports whether the server gets it.
func (p *replay) sent(m lightMessage, line []byte) bool {
	switch {
	case m.Method == "notifications/initialized":
		p.initialized = line
	case m.Method == "notifications/cancelled":
		// The server does not answer it any more, and the client may use its id again.
		if key, ok := idKey(m.Params.RequestID); ok && p.open[key] != nil && p.open[key].method != "initialize" {
			delete(p.open, key)
		}
	case m.isCall():
		p.begin(m, line)
	case m.isResponse():
		key, ok := idKey(m.ID)
		if ok && !p.asked[key] {
			return false // a server that has ended asked for it
		}
		delete(p.asked, key)
	}
	return true
}

func (p *replay) begin(m lightMessage, line []byte) *relayedCall {
	key, ok := idKey(m.ID)
	if !ok || p.open[key] != nil || len(p.open) >= maxReplayed {
		return nil
	}
	c := &relayedCall{openCall: openCall{method: m.Method}, id: m.ID}
	switch m.Method {
	case "initialize":
		if p.initialize == nil {
			p.initialize, c.line = line, line
		}
	case "subscriptions/listen":
		c.line = line
	case "logging/setLevel":
		c.sets, c.line = m.Method, line
	case "resources/subscribe", "resources/unsubscribe":
		c.sets, c.line = "resource "+m.Params.URI, line
	}
	if p.open == nil {
		p.open = map[any]*relayedCall{}
	}
	p.open[key] = c
	return c
}

// received records a message of the server, and reports whether the client gets it.
func (p *replay) received(m lightMessage) bool {
	key, ok := idKey(m.ID)
	switch {
	case m.Method == "notifications/subscriptions/acknowledged" && p.acks > 0:
		p.acks--
		return false
	case ok && m.isCall():
		if p.asked == nil {
			p.asked = map[any]bool{}
		}
		p.asked[key] = true
	case ok && m.isResponse() && p.open[key] != nil:
		c := p.open[key]
		delete(p.open, key)
		p.set(c, m.Error == nil)
		return !c.own
	}
	return true
}

// set keeps what an answered request has set.
func (p *replay) set(c *relayedCall, success bool) {
	switch {
	case c.own:
	case c.method == "initialize" && c.line != nil && !success:
		p.initialize = nil
	case c.sets == "" || !success:
	case c.method == "resources/unsubscribe":
		delete(p.state, c.sets)
	case len(p.state) < maxReplayed:
		if p.state == nil {
			p.state = map[string][]byte{}
		}
		p.state[c.sets] = c.line
	}
}

// fail forgets the open requests after the end of the server, and returns the ids of those that the
// client must get an answer to. Streams stay open for replay, and so does the first "initialize" if
// another server is joined at once.
func (p *replay) fail(rejoin, leaving bool) (ids []json.RawMessage) {
	for key, c := range p.open {
		replayed := c.isStream() || c.method == "initialize" && c.line != nil && rejoin
		if replayed && !c.own && !leaving {
			continue
		}
		delete(p.open, key)
		if c.method == "initialize" && c.line != nil && !c.own {
			p.initialize = nil
		}
		if !c.own && !c.isStream() {
			ids = append(ids, c.id)
		}
	}
	p.asked, p.acks = nil, 0
	slices.SortFunc(ids, func(a, b json.RawMessage) int { return strings.Compare(string(a), string(b)) })
	return ids
}

// replay returns the messages that give another server the client's state. What the client has an
// answer to is sent under an id that no client uses.
func (p *replay) replay() (lines [][]byte) {
	var streams [][]byte
	waiting := false // for the answer to initialize
	for _, c := range p.open {
		switch {
		case c.isStream():
			streams = append(streams, c.line)
			p.acks++
		case c.method == "initialize":
			waiting = true
		}
	}
	switch {
	case waiting:
		lines = append(lines, p.initialize)
	case p.initialize != nil:
		lines = append(lines, p.again(p.initialize))
	}
	if p.initialized != nil {
		lines = append(lines, p.initialized)
	}
	for _, name := range slices.Sorted(maps.Keys(p.state)) {
		lines = append(lines, p.again(p.state[name]))
	}
	return append(lines, streams...)
}

// again returns a request under an id of its own, and records it.
func (p *replay) again(line []byte) []byte {
	p.count++
	id, err := json.Marshal(fmt.Sprintf("mcp-code-sandbox/replay/%d", p.count))
	var members map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(line, &members)
	}
	if err != nil {
		return line // cannot happen: the server has answered the line with success
	}
	members["id"] = id
	if line, err = json.Marshal(members); err != nil {
		return line
	}
	if c := p.begin(lightMessage{ID: id, Method: parseLight(line).Method}, nil); c != nil {
		c.own = true
	}
	return append(line, '\n')
}
