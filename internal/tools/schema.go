package tools

import (
	"context"
	"maps"
	"reflect"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/runner"
)

// tool is one MCP tool.
type tool struct {
	definition mcp.Tool
	input      *jsonschema.Schema // the complete schema; clients see it without the properties in hidden
	result     *jsonschema.Schema // of the JSON that the tool returns
	hidden     []string           // arguments that this server does not offer; they are refused, not ignored
	parameters parameters
	// adapt, if set, completes a copy of the definition with what depends on the runners.
	adapt func(definition *mcp.Tool, input *jsonschema.Schema, runners runner.Set)
	call  func(context.Context, *call) (*mcp.CallToolResult, error)
}

// Annotations of the tools.
var (
	readOnly    = mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)}
	destructive = mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)}
	runsCode    = mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(true)}
)

// newTool returns a tool that decodes its arguments into an A. R is the type of the JSON in its
// result.
func newTool[A, R any](definition mcp.Tool, handle func(context.Context, *call, A) (*mcp.CallToolResult, error)) *tool {
	t := &tool{definition: definition, input: schemaFor[A](), result: schemaFor[R]()}
	t.definition.InputSchema = t.input
	t.parameters = parametersOf(t.input)
	t.call = func(ctx context.Context, c *call) (*mcp.CallToolResult, error) {
		args, err := parseArguments(c.req.Params.Arguments, t.parameters)
		if err != nil {
			return nil, err
		}
		c.warnings = args.warnings
		var in A
		if err := args.decode(t.input, &in); err != nil {
			return nil, err
		}
		return handle(ctx, c, in)
	}
	return t
}

// newStructuredTool returns a tool that announces the schema of its result and returns it as
// structured content as well, to clients that know it.
func newStructuredTool[A, R any](definition mcp.Tool, handle func(context.Context, *call, A) (R, error)) *tool {
	t := newTool[A, R](definition, func(ctx context.Context, c *call, in A) (*mcp.CallToolResult, error) {
		out, err := handle(ctx, c, in)
		if err != nil {
			return nil, err
		}
		res := textResult(out)
		if c.client.atLeast(version20250618) {
			res.StructuredContent = out
		}
		return res, nil
	})
	t.definition.OutputSchema = t.result
	return t
}

// define returns the tool as clients see it when these runners are available.
func (t *tool) define(runners runner.Set) *mcp.Tool {
	definition, input := t.definition, *t.input
	input.Properties = maps.Clone(input.Properties)
	for _, name := range t.hidden {
		delete(input.Properties, name)
	}
	input.PropertyOrder = slices.DeleteFunc(slices.Clone(input.PropertyOrder), func(name string) bool {
		return slices.Contains(t.hidden, name)
	})
	if t.adapt != nil {
		t.adapt(&definition, &input, runners)
	}
	definition.InputSchema = &input
	return &definition
}

// limit sets the minimum and maximum of a number, which [arguments.decode] enforces.
func (t *tool) limit(name string, minimum, maximum float64) *tool {
	t.input.Properties[name].Minimum, t.input.Properties[name].Maximum = &minimum, &maximum
	return t
}

// setEnum replaces a property by a copy that lists the allowed values.
func setEnum(schema *jsonschema.Schema, name string, values []string) *jsonschema.Schema {
	property := *schema.Properties[name]
	property.Enum = make([]any, len(values))
	for i, v := range values {
		property.Enum[i] = v
	}
	schema.Properties[name] = &property
	return &property
}

// warned is the last part of a result. No schema contains it: results have warnings only if
// arguments were ignored.
type warned struct {
	Warnings []string `json:"warnings,omitempty"`
}

// schemaFor returns the schema of T for models to read: without null as a second type of pointers
// and slices, and without additionalProperties of structs. T is a type of this package, so an error
// is a bug.
func schemaFor[T any]() *jsonschema.Schema {
	schema, err := jsonschema.For[T](&jsonschema.ForOptions{
		TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[warned]():          {Type: "object"},
			reflect.TypeFor[networkArgument](): {Type: "boolean"},
		},
	})
	if err != nil {
		panic("tools: " + err.Error())
	}
	simplify(schema)
	return schema
}

func simplify(s *jsonschema.Schema) {
	if len(s.Types) == 2 && s.Types[0] == "null" {
		s.Type, s.Types = s.Types[1], nil
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Not != nil { // false
		s.AdditionalProperties = nil
		if s.Properties == nil {
			s.Properties = map[string]*jsonschema.Schema{} // some clients read it without checking
		}
	}
	for _, property := range s.Properties {
		simplify(property)
	}
	if s.Items != nil {
		simplify(s.Items)
	}
}
