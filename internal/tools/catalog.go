package tools

import (
	"cmp"
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// noArguments are the arguments of list_runners and list_services.
type noArguments struct{}

type listRunnersJSON struct {
	Languages []runnerJSON `json:"languages"`
}

// runnerJSON is contract 2's language. Only MCP clients get the fields from Title on.
type runnerJSON struct {
	Language   string   `json:"language"`
	Image      string   `json:"image"`
	Version    string   `json:"version,omitempty"`
	Title      string   `json:"title,omitempty"`
	Libraries  []string `json:"libraries,omitempty"`
	Persistent bool     `json:"persistent,omitempty" jsonschema:"The runner can keep variables between runs"`
}

func (t *toolset) listRunnersTool() *tool {
	tool := newStructuredTool(mcp.Tool{
		Name:        "list_runners",
		Title:       "List runners",
		Description: "List all available code execution runners and their images",
		Annotations: &readOnly,
	}, t.listRunners)
	if t.offers("run") {
		persistent := tool.result.Properties["languages"].Items.Properties["persistent"]
		persistent.Description = "With a session, the tool run keeps variables between calls"
	}
	return tool
}

func (t *toolset) listRunners(_ context.Context, c *call, _ noArguments) (listRunnersJSON, error) {
	out := listRunnersJSON{Languages: []runnerJSON{}}
	for _, r := range t.executor.Runners() {
		entry := runnerJSON{Language: r.Name, Image: r.Image, Version: r.Version}
		if !c.client.plain {
			entry.Title, entry.Libraries, entry.Persistent = r.Title, r.Libraries, len(r.Persistent) > 0
		}
		out.Languages = append(out.Languages, entry)
	}
	return out, nil
}

type listServicesJSON struct {
	Services []serviceJSON `json:"services"`
}

type serviceJSON struct {
	Name        string `json:"name"`
	DisplayName string `json:"display_name"`
	Connected   bool   `json:"connected"`
	ConnectURL  string `json:"connect_url,omitempty"`
}

func (t *toolset) listServicesTool() *tool {
	return newStructuredTool(mcp.Tool{
		Name:  "list_services",
		Title: "List services",
		Description: "List the outside services (APIs) that code may call through the argument services of the run tools, and whether the user has connected them. " +
			"A service that is not connected has a connect_url: show it to the user, who opens it in a browser to connect the service.",
		Annotations: &readOnly,
	}, t.listServices)
}

func (t *toolset) listServices(ctx context.Context, c *call, _ noArguments) (listServicesJSON, error) {
	out := listServicesJSON{Services: []serviceJSON{}}
	for _, s := range t.services.List(ctx, c.caller) {
		entry := serviceJSON{Name: s.Name, DisplayName: cmp.Or(s.DisplayName, s.Name), Connected: s.Connected}
		if !s.Connected {
			entry.ConnectURL = s.ConnectURL
		}
		out.Services = append(out.Services, entry)
	}
	return out, nil
}
