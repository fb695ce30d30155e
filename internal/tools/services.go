package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/session"
)

// maxServicesJSON bounds the argument services before it is decoded.
const maxServicesJSON = 256 << 10

// Services are the outside services that code may call.
type Services struct {
	Names []string
	// List says what the caller has connected.
	List func(ctx context.Context, caller session.Caller) []executor.ServiceState
}

type servicesJSON struct {
	Services []serviceJSON `json:"services"`
}

type serviceJSON struct {
	Name        string `json:"name"`
	DisplayName string `json:"display_name"`
	Connected   bool   `json:"connected"`
	ConnectURL  string `json:"connect_url,omitempty"`
}

func listServicesTool() *mcp.Tool {
	text, yes := &jsonschema.Schema{Type: "string"}, &jsonschema.Schema{Type: "boolean"}
	return &mcp.Tool{
		Name:  "list_services",
		Title: "List services",
		Description: "List the outside services (APIs) that code may call through the argument services of the run tools, and whether the user has connected them. " +
			"One that is not connected has a connect_url: show it to the user, who opens it in a browser and connects the service.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
		InputSchema: noArguments(),
		OutputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{"services": {
				Type: "array",
				Items: &jsonschema.Schema{
					Type:          "object",
					Properties:    map[string]*jsonschema.Schema{"name": text, "display_name": text, "connected": yes, "connect_url": text},
					PropertyOrder: []string{"name", "display_name", "connected", "connect_url"},
					Required:      []string{"name", "display_name", "connected"},
				},
			}},
			Required: []string{"services"},
		},
	}
}

func (t *toolset) listServices(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	out := servicesJSON{Services: []serviceJSON{}}
	for _, s := range t.services.List(ctx, c.caller) {
		entry := serviceJSON{Name: s.Name, DisplayName: s.DisplayName, Connected: s.Connected}
		if entry.DisplayName == "" {
			entry.DisplayName = s.Name
		}
		if !s.Connected {
			entry.ConnectURL = s.ConnectURL
		}
		out.Services = append(out.Services, entry)
	}
	return structuredResult(c.client, out), nil
}

// withServices adds to a run tool the argument services, where there are any.
func (t *toolset) withServices(tool *mcp.Tool) *mcp.Tool {
	if t.services == nil {
		return tool
	}
	texts := &jsonschema.Schema{Type: "array", Items: &jsonschema.Schema{Type: "string"}}
	list := func(description string) *jsonschema.Schema {
		s := *texts
		s.Description = description
		return &s
	}
	schema := *tool.InputSchema.(*jsonschema.Schema)
	schema.Properties = maps.Clone(schema.Properties)
	schema.PropertyOrder = append(slices.Clone(schema.PropertyOrder), "services")
	schema.Properties["services"] = &jsonschema.Schema{
		Type: "array",
		Description: "Outside services that the code may call while it runs, with the user's credentials, which it never sees. No network is needed. For each, the code has the " +
			"environment variables <NAME>_PROXY_URL and <NAME>_TOKEN (for a single one also PROXY_URL and EXECUTION_TOKEN): request PROXY_URL + the API's path " +
			`with the header "Authorization: Bearer " + EXECUTION_TOKEN. Available: ` + strings.Join(t.services.Names, ", "),
		Items: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"name":         {Type: "string", Enum: enumOf(t.services.Names)},
				"paths":        list("Paths that the code may request, such as /api/v1/metrics, /api/*/metrics or /api/** (default: the service's)"),
				"methods":      list("HTTP methods that it may use (default: the service's)"),
				"max_requests": {Type: "integer", Minimum: new(1.0), Description: "Most requests that it may make"},
			},
			PropertyOrder: []string{"name", "paths", "methods", "max_requests"},
			Required:      []string{"name"},
		},
	}
	with := *tool
	with.InputSchema = &schema
	return &with
}

// services returns the services that a run asks for. A plain name stands for an object with that name.
func (a *arguments) services() []executor.ServiceRequest {
	const want = "an array of objects with a name and, if need be, paths, methods and max_requests"
	if len(a.members["services"].raw) > maxServicesJSON {
		a.fail("services is too large")
		return nil
	}
	var raw []json.RawMessage
	a.get("services", want, &raw)
	var list []executor.ServiceRequest
	for _, item := range raw {
		var s struct {
			Name        string   `json:"name"`
			Paths       []string `json:"paths"`
			Methods     []string `json:"methods"`
			MaxRequests *int64   `json:"max_requests"`
		}
		dec := json.NewDecoder(bytes.NewReader(item))
		dec.DisallowUnknownFields() // a misspelt restriction must not be one that is not there
		if json.Unmarshal(item, &s.Name) != nil && dec.Decode(&s) != nil || s.Name == "" {
			a.fail("services must be %s", want)
			return nil
		}
		req := executor.ServiceRequest{Name: s.Name, Paths: s.Paths, Methods: s.Methods}
		if s.MaxRequests != nil {
			if req.MaxRequests = *s.MaxRequests; req.MaxRequests < 1 {
				a.fail("max_requests must be at least 1")
				return nil
			}
		}
		// An empty list allows nothing: it is not the same as none.
		if s.Paths != nil && len(s.Paths) == 0 || s.Methods != nil && len(s.Methods) == 0 {
			a.fail("paths and methods must not be empty; leave them out for the service's own")
			return nil
		}
		list = append(list, req)
	}
	return list
}
