package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// Exit codes of the program itself. A run's own exit code is passed through, so these stay clear of the common ones.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitTimeout = 124 // as timeout(1)
	exitServer  = 125 // as docker run: we failed, not the program
)

// cli is the command line.
type cli struct {
	settings
	PrintVersion versionFlag `name:"version" help:"Print the version."`

	Serve    serveCmd    `cmd:"" help:"Serve MCP over HTTP."`
	Stdio    stdioCmd    `cmd:"" help:"Serve MCP on stdin and stdout, and file links over HTTP."`
	Run      runCmd      `cmd:"" help:"Run one piece of code from the terminal."`
	Runners  runnersCmd  `cmd:"" help:"List the language environments, or prepare them."`
	Sessions sessionsCmd `cmd:"" help:"List the sessions of all callers, or end what runs in one."`
	Proxy    proxyCmd    `cmd:"" help:"Check the configuration and the audit trail of the execution proxy."`
	Doctor   doctorCmd   `cmd:"" help:"Check what works on this host, and say how to fix what does not."`
	Version  versionCmd  `cmd:"" help:"Print the version."`
}

// invocation is what a command has of the world around it.
type invocation struct {
	settings       *settings
	env            map[string]string
	stdin          io.Reader
	stdout, stderr io.Writer
	code           int  // the exit code of a command that did not fail
	keepReady      bool // more than one session is to come: sandboxes may be started ahead of them
}

// exit is how kong's --help ends a parse; see run.
type exit int

// run is the whole program: it returns the exit code and touches the world only by its arguments and the settings.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	defer func() {
		if p := recover(); p != nil {
			e, ok := p.(exit)
			if !ok {
				panic(p)
			}
			code = int(e)
		}
	}()
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	var c cli
	parser, err := newParser(&c, env, stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "mcp-code-sandbox:", err)
		return exitServer
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	if args[0] == "help" {
		args = append(args[1:len(args):len(args)], "--help")
	}
	kctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(stderr, "mcp-code-sandbox:", err)
		fmt.Fprintln(stderr, "Try: mcp-code-sandbox --help")
		return exitUsage
	}
	inv := &invocation{settings: &c.settings, env: env, stdin: stdin, stdout: stdout, stderr: stderr}
	if kctx.Command() != "version" {
		if err := c.validate(env, os.Geteuid()); err != nil {
			fmt.Fprintf(stderr, "mcp-code-sandbox: these settings cannot work:\n  %s\n", strings.ReplaceAll(err.Error(), "\n", "\n  "))
			return exitUsage
		}
	}
	kctx.BindTo(ctx, (*context.Context)(nil))
	if err := kctx.Run(inv); err != nil {
		fmt.Fprintln(stderr, "mcp-code-sandbox:", err)
		if inv.code != 0 {
			return inv.code
		}
		return exitFailure
	}
	return inv.code
}

func newParser(c *cli, env map[string]string, stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("mcp-code-sandbox"),
		kong.Description("Runs the code of MCP clients in an OS-level sandbox.\n\nEach setting is a flag and an environment variable; the flag wins."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.Resolvers(environment(env)),
		kong.ValueFormatter(describe),
		kong.KindMapper(reflect.Int, kong.MapperFunc(decodeInt)),
		kong.KindMapper(reflect.Float64, kong.MapperFunc(decodeFloat)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.ExplicitGroups(settingGroups),
	)
}

// environment resolves flags that were not given from env, by their environ tag.
func environment(env map[string]string) kong.Resolver {
	return kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		name := flag.Tag.Get("environ")
		value := env[name]
		if name == "" || value == "" {
			return nil, nil
		}
		// Tried here first, so that the error names the variable.
		trial := reflect.New(flag.Target.Type()).Elem()
		if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: value})}, trial); err != nil {
			return nil, errors.New(name + ": " + strings.TrimPrefix(err.Error(), "--"+flag.Name+": "))
		}
		return value, nil
	})
}

// describe adds the environment name to a flag's help.
func describe(v *kong.Value) string {
	help := v.Help
	if name := v.Tag.Get("environ"); name != "" {
		help += " [$" + name + "]"
	}
	return help
}
