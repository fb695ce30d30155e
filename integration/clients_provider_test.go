//go:build linux

package integration

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// modelCall is a tool call that the scripted model makes.
type modelCall struct {
	Tool string
	Args map[string]any
}

// shown is what the model sees between its last tool call and its next turn.
type shown struct {
	Text   string
	Images [][]byte
}

// The HTTP APIs of the model providers: OpenAI Chat Completions, OpenAI Responses and Anthropic
// Messages.
const (
	apiChat      = "chat"
	apiResponses = "responses"
	apiMessages  = "messages"
)

// provider is a loopback server with those APIs. Behind each, a model makes the scripted calls, one
// per request, and then answers. It refuses, with status 400, the blocks and schemas that the real
// APIs refuse.
type provider struct {
	URL string

	script func(api string) []modelCall
	answer string

	mu    sync.Mutex
	shown map[string][]shown // in each request, by API
}

func newProvider(t *testing.T, answer string, script func(api string) []modelCall) *provider {
	t.Helper()
	p := &provider{script: script, answer: answer, shown: map[string][]shown{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", p.handle(t, apiChat, readChat, writeChat))
	mux.HandleFunc("POST /v1/responses", p.handle(t, apiResponses, readResponses, writeResponses))
	mux.HandleFunc("POST /v1/messages", p.handle(t, apiMessages, readMessages, writeMessages))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the model provider is asked for %s %s", r.Method, r.URL)
		http.NotFound(w, r)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	p.URL = s.URL + "/v1"
	return p
}

// results returns what the model of an API was shown after each of its calls.
func (p *provider) results(api string) []shown {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.shown[api]) == 0 {
		return nil
	}
	return slices.Clone(p.shown[api][1:])
}

// readRequest reads the new content for the model and the functions it may call, or says why the
// API refuses the request.
type readRequest func(request object) (seen shown, functions []object, err error)

// writeReply returns the model's call, or its answer if there is no call.
type writeReply func(id int, call *modelCall, answer string) object

func (p *provider) handle(t *testing.T, api string, read readRequest, write writeReply) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
		if err != nil {
			t.Errorf("the model provider: %v", err)
			return
		}
		var request object
		if err := json.Unmarshal(body, &request); err != nil {
			t.Errorf("the model provider: %v in %.500s", err, body)
		}
		seen, tools, err := read(request)
		if err == nil {
			err = checkFunctions(tools)
		}
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			t.Errorf("the model provider refuses the request: %v", err)
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(object{"type": "error", "error": object{"type": "invalid_request_error", "message": err.Error()}})
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.shown[api] = append(p.shown[api], seen)
		_ = json.NewEncoder(w).Encode(write(len(p.shown[api]), p.next(api, tools), p.answer))
	}
}

// next returns the model's next call, or nil if it answers. smolagents wants the answer as a tool
// call.
func (p *provider) next(api string, tools []object) *modelCall {
	script := p.script(api)
	if n := len(p.shown[api]); n <= len(script) {
		return script[n-1].complete(tools)
	}
	if slices.ContainsFunc(tools, func(f object) bool { return f["name"] == "final_answer" }) {
		return &modelCall{"final_answer", map[string]any{"answer": p.answer}}
	}
	return nil
}

// complete adds a value for each argument that the tool requires. smolagents declares all of them
// required.
func (c modelCall) complete(tools []object) *modelCall {
	i := slices.IndexFunc(tools, func(f object) bool { return f["name"] == c.Tool })
	if i < 0 {
		return &c
	}
	schema, _ := tools[i]["parameters"].(object)
	properties, _ := schema["properties"].(object)
	required, _ := schema["required"].([]any)
	args := maps.Clone(c.Args)
	for _, name := range required {
		property, _ := properties[name.(string)].(object)
		if _, ok := args[name.(string)]; !ok {
			args[name.(string)] = map[any]any{"boolean": false, "number": 30, "integer": 1, "object": object{}, "array": []any{}, "string": "auto"}[property["type"]]
		}
	}
	return &modelCall{c.Tool, args}
}

type object = map[string]any

// objects reads a JSON array of objects and refuses anything else in it.
func objects(v any) ([]object, error) {
	if v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%.200v is not an array", v)
	}
	var all []object
	for _, e := range list {
		o, ok := e.(object)
		if !ok {
			return nil, fmt.Errorf("%.200v is not an object", e)
		}
		all = append(all, o)
	}
	return all, nil
}

var functionName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// checkFunctions checks what both providers require of a function: a name, a short description and
// a schema with properties.
func checkFunctions(functions []object) error {
	for _, f := range functions {
		name, _ := f["name"].(string)
		if !functionName.MatchString(name) {
			return fmt.Errorf("%q is not the name of a function", name)
		}
		if d, _ := f["description"].(string); d == "" || len(d) > 1024 {
			return fmt.Errorf("the description of %s has %d bytes", name, len(d))
		}
		schema, _ := f["parameters"].(object)
		if schema == nil {
			schema, _ = f["input_schema"].(object)
		}
		if _, ok := schema["properties"].(object); !ok || schema["type"] != "object" {
			return fmt.Errorf("invalid schema for function %s: object schema missing properties", name)
		}
	}
	return nil
}

// image adds an image from a data URL, or from base64 with its type.
func (s *shown) image(mediaType, data string) error {
	if !slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, mediaType) {
		return fmt.Errorf("unsupported image type %q", mediaType)
	}
	b, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return fmt.Errorf("an image: %w", err)
	}
	s.Images = append(s.Images, b)
	return nil
}

func (s *shown) imageURL(url string) error {
	if strings.HasPrefix(url, "https://") || strings.HasPrefix(url, "http://") {
		return nil
	}
	mediaType, data, ok := strings.Cut(strings.TrimPrefix(url, "data:"), ";base64,")
	if !ok || !strings.HasPrefix(url, "data:") {
		return fmt.Errorf("invalid image URL %.100q: only http, https and data URLs are supported", url)
	}
	return s.image(mediaType, data)
}

// blocks adds content that is a string or an array of blocks. allowed lists the types that the
// provider documents for this place.
func (s *shown) blocks(content any, allowed ...string) error {
	if text, ok := content.(string); ok {
		s.Text += text + "\n"
		return nil
	}
	list, err := objects(content)
	if err != nil {
		return err
	}
	for _, b := range list {
		kind, _ := b["type"].(string)
		if !slices.Contains(allowed, kind) {
			return fmt.Errorf("unsupported block %.200v: supported are %v", b, allowed)
		}
		if err := s.block(kind, b); err != nil {
			return err
		}
	}
	return nil
}

func (s *shown) block(kind string, b object) error {
	switch kind {
	case "text", "input_text", "output_text":
		text, _ := b["text"].(string)
		if text == "" {
			return fmt.Errorf("text content blocks must be non-empty")
		}
		s.Text += text + "\n"
	case "image_url": // Chat Completions
		image, _ := b["image_url"].(object)
		url, _ := image["url"].(string)
		return s.imageURL(url)
	case "input_image": // Responses
		url, _ := b["image_url"].(string)
		return s.imageURL(url)
	case "image": // Messages
		source, _ := b["source"].(object)
		mediaType, _ := source["media_type"].(string)
		data, _ := source["data"].(string)
		if source["type"] == "url" {
			url, _ := source["url"].(string)
			return s.imageURL(url)
		}
		return s.image(mediaType, data)
	case "tool_result":
		allowed := []string{"text", "image", "document", "search_result"}
		if b["is_error"] == true {
			allowed = allowed[:1]
		}
		return s.blocks(b["content"], allowed...)
	}
	return nil
}

// readChat reads a request of OpenAI's Chat Completions. A tool's message holds text only; an image
// needs a user's message.
func readChat(request object) (seen shown, functions []object, err error) {
	tools, err := objects(request["tools"])
	if err != nil {
		return seen, nil, err
	}
	for _, tool := range tools {
		f, _ := tool["function"].(object)
		functions = append(functions, f)
	}
	messages, err := objects(request["messages"])
	for _, m := range messages {
		allowed := []string{"text"}
		switch m["role"] {
		case "system", "developer", "tool":
		case "assistant":
			seen = shown{}
			continue
		case "user":
			allowed = []string{"text", "image_url", "input_audio", "file"}
		default:
			return seen, nil, fmt.Errorf("a message with the role %v", m["role"])
		}
		if err := seen.blocks(m["content"], allowed...); err != nil {
			return seen, nil, fmt.Errorf("a message with the role %v: %w", m["role"], err)
		}
	}
	return seen, functions, err
}

func writeChat(id int, call *modelCall, answer string) object {
	message, finish := object{"role": "assistant", "content": answer}, "stop"
	if call != nil {
		args, _ := json.Marshal(call.Args)
		message = object{"role": "assistant", "content": nil, "tool_calls": []object{{"id": fmt.Sprintf("call_%d", id), "type": "function",
			"function": object{"name": call.Tool, "arguments": string(args)}}}}
		finish = "tool_calls"
	}
	return object{"id": fmt.Sprintf("chatcmpl-%d", id), "object": "chat.completion", "created": 1, "model": "scripted",
		"choices": []object{{"index": 0, "message": message, "finish_reason": finish}},
		"usage":   object{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
}

// readResponses reads a request of OpenAI's Responses.
func readResponses(request object) (seen shown, functions []object, err error) {
	if functions, err = objects(request["tools"]); err != nil {
		return seen, nil, err
	}
	items, err := objects(request["input"])
	for _, item := range items {
		input := []string{"input_text", "input_image", "input_file"}
		switch kind, _ := item["type"].(string); {
		case kind == "function_call" || kind == "reasoning" || item["role"] == "assistant":
			seen = shown{}
			continue
		case kind == "function_call_output":
			err = seen.blocks(item["output"], input...)
		case kind == "message" || kind == "":
			err = seen.blocks(item["content"], input...)
		default:
			err = fmt.Errorf("an item of type %s", kind)
		}
		if err != nil {
			return seen, nil, err
		}
	}
	return seen, functions, err
}

func writeResponses(id int, call *modelCall, answer string) object {
	item := object{"id": fmt.Sprintf("msg_%d", id), "type": "message", "role": "assistant", "status": "completed",
		"content": []object{{"type": "output_text", "text": answer, "annotations": []object{}}}}
	if call != nil {
		args, _ := json.Marshal(call.Args)
		item = object{"id": fmt.Sprintf("fc_%d", id), "type": "function_call", "call_id": fmt.Sprintf("call_%d", id),
			"name": call.Tool, "arguments": string(args), "status": "completed"}
	}
	return object{"id": fmt.Sprintf("resp_%d", id), "object": "response", "created_at": 1, "status": "completed", "model": "scripted",
		"output": []object{item}, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []object{},
		"usage": object{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
			"input_tokens_details": object{"cached_tokens": 0}, "output_tokens_details": object{"reasoning_tokens": 0}}}
}

// readMessages reads a request of Anthropic's Messages.
func readMessages(request object) (seen shown, functions []object, err error) {
	if functions, err = objects(request["tools"]); err != nil {
		return seen, nil, err
	}
	messages, err := objects(request["messages"])
	for _, m := range messages {
		switch m["role"] {
		case "assistant":
			seen = shown{}
		case "user":
			if err := seen.blocks(m["content"], "text", "image", "document", "tool_result"); err != nil {
				return seen, nil, err
			}
		default:
			return seen, nil, fmt.Errorf("a message with the role %v", m["role"])
		}
	}
	return seen, functions, err
}

func writeMessages(id int, call *modelCall, answer string) object {
	content, stop := []object{{"type": "text", "text": answer}}, "end_turn"
	if call != nil {
		content, stop = []object{{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", id), "name": call.Tool, "input": call.Args}}, "tool_use"
	}
	return object{"id": fmt.Sprintf("msg_%d", id), "type": "message", "role": "assistant", "model": "scripted", "content": content,
		"stop_reason": stop, "stop_sequence": nil, "usage": object{"input_tokens": 1, "output_tokens": 1}}
}
