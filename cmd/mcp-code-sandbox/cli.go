package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"mcp-code-sandbox/internal/userns"
)

// Exit codes of the program. mcp-code-sandbox run passes on the exit code of its code.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitTimeout = 124 // as timeout(1)
	exitServer  = 125 // as docker run: this program failed, not the code
)

// cli is the command line.
type cli struct {
	settings
	PrintVersion versionFlag `name:"version" help:"Print the version."`
	SharedServer string      `name:"shared-server" hidden:"" help:"Be the server with this id, for windows of stdio."`

	Serve    serveCmd    `cmd:"" help:"Serve MCP over HTTP."`
	Stdio    stdioCmd    `cmd:"" help:"Serve MCP on stdin and stdout, and file links over HTTP."`
	Run      runCmd      `cmd:"" help:"Run one piece of code from the terminal."`
	Runners  runnersCmd  `cmd:"" help:"List the language environments, or prepare them."`
	Sessions sessionsCmd `cmd:"" help:"List the sessions of all callers, or end what runs in one."`
	Proxy    proxyCmd    `cmd:"" help:"Check the configuration and the audit trail of the execution proxy."`
	Packages packagesCmd `cmd:"" help:"Show or empty the cache of installed packages."`
	Store    storeCmd    `cmd:"" help:"Copy the database, from SQLite to Postgres or back."`
	Doctor   doctorCmd   `cmd:"" help:"Check what works on this host, and how to fix what does not."`
	Version  versionCmd  `cmd:"" help:"Print the version."`
}

// invocation connects a command with the outside.
type invocation struct {
	settings       *settings
	env            map[string]string
	stdin          io.Reader
	stdout, stderr io.Writer
	code           int  // exit code of a command that succeeds
	keepReady      bool // start sandboxes in advance, for sessions to come

	program
	args   []string
	shared string // id of the shared server that this process is; empty: none
}

// environ returns the environment as exec wants it.
func (inv *invocation) environ() (environ []string) {
	for name, value := range inv.env {
		environ = append(environ, name+"="+value)
	}
	return environ
}

// program is how this program can start itself again. The zero program cannot.
type program struct {
	self string // the path of the executable
	name string // its first argument
}

// kongExit is what --help panics with to end the parse; see run.
type kongExit int

// run is the whole program. It depends on its arguments only, and returns the exit code.
func (p program) run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case kongExit:
			code = int(p)
		default:
			panic(p)
		}
	}()
	fail := func(code int, err error) int {
		fmt.Fprintln(stderr, "mcp-code-sandbox:", err)
		return code
	}
	env := variables(environ)
	var c cli
	parser, err := newParser(&c, env, stdout, stderr)
	if err != nil {
		return fail(exitServer, err)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	if args[0] == "help" {
		args = append(args[1:len(args):len(args)], "--help")
	}
	kctx, err := parser.Parse(args)
	if err != nil {
		return fail(exitUsage, usageError(args, err))
	}
	if kctx.Command() != "version" {
		if err := c.validate(env, userns.UID()); err != nil {
			return fail(exitUsage, errors.New("invalid settings:\n  "+strings.ReplaceAll(err.Error(), "\n", "\n  ")))
		}
	}
	inv := &invocation{settings: &c.settings, env: env, stdin: stdin, stdout: stdout, stderr: stderr,
		program: p, args: args, shared: c.SharedServer}
	kctx.BindTo(ctx, (*context.Context)(nil))
	if err := kctx.Run(inv); err != nil {
		return fail(max(inv.code, exitFailure), err)
	}
	return inv.code
}

// variables returns the environment by name.
func variables(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	return env
}

// usageError says in plain words which value or argument is missing, and names the command's help.
func usageError(args []string, err error) error {
	command := "mcp-code-sandbox"
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context.Selected() != nil {
		node, last := parse.Context.Selected(), args[len(args)-1]
		command = node.FullPath()
		for _, f := range parse.Context.Flags() {
			if parse.Context.Error != nil && !f.IsBool() && (last == "--"+f.Name || f.Short != 0 && last == "-"+string(f.Short)) {
				err = fmt.Errorf("%s needs a value", last)
			}
		}
		for _, p := range node.Positional {
			if parse.Context.Error == nil && p.Required && !p.Set {
				err = fmt.Errorf("the argument %s is missing", p.Summary())
			}
		}
	}
	return fmt.Errorf("%w\nTry: %s --help", err, command)
}

func newParser(c *cli, env map[string]string, stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("mcp-code-sandbox"),
		kong.Description("Runs the code of MCP clients in an OS-level sandbox.\n\nEach setting is a flag and an environment variable; the flag wins."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(kongExit(code)) }),
		kong.Resolvers(environment(env)),
		kong.ValueFormatter(helpWithVariable),
		kong.KindMapper(reflect.Int, kong.MapperFunc(decodeNumber)),
		kong.KindMapper(reflect.Float64, kong.MapperFunc(decodeNumber)),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.ExplicitGroups(settingGroups),
	)
}

// environment resolves a flag from the variable in its environ tag. Kong's own env tag reads the
// process's environment, and its errors quote the value, which may be a secret.
func environment(env map[string]string) kong.Resolver {
	return kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		name := flag.Tag.Get("environ")
		value := env[name]
		if name == "" || value == "" {
			return nil, nil
		}
		// Kong decodes it again; this error names the variable instead of the flag.
		trial := reflect.New(flag.Target.Type()).Elem()
		token := kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: value})
		if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: token}, trial); err != nil {
			return nil, errors.New(name + ": " + strings.TrimPrefix(err.Error(), "--"+flag.Name+": "))
		}
		return value, nil
	})
}

// helpWithVariable adds the environment variable to a flag's help.
func helpWithVariable(v *kong.Value) string {
	if name := v.Tag.Get("environ"); name != "" {
		return v.Help + " [$" + name + "]"
	}
	return v.Help
}
