package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/oauth"
	"mcp-code-sandbox/internal/packages"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/serviceconfig"
)

type proxyCmd struct {
	Validate proxyValidateCmd `cmd:"" help:"Check a configuration file and list its services."`
	Audit    proxyAuditCmd    `cmd:"" help:"Verify the audit trail and print its last hash."`
}

type proxyValidateCmd struct {
	File string `arg:"" type:"path" help:"The file that SANDBOX_CONFIG would name."`
}

// Run reads the file and the secrets it refers to, as the server does. It makes no connections.
func (c *proxyValidateCmd) Run(inv *invocation) error {
	file, err := loadServices(c.File, inv.env)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(inv.stdout, 0, 0, 2, ' ', 0)
	if len(file.Services) > 0 {
		fmt.Fprintln(t, "SERVICE\tADDRESS\tCREDENTIAL\tPATHS")
	}
	for _, s := range file.Services {
		credential := "the operator's own"
		switch {
		case s.Disabled:
			credential = "(not enabled)"
		case s.OAuth != nil:
			credential = "each caller's, by OAuth"
		}
		paths := strings.Join(s.Defaults, " ")
		if paths == "" {
			paths = "as requested"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, s.BaseURL, credential, paths)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if p := file.Packages; p != nil {
		for _, kind := range slices.Sorted(maps.Keys(p.Kinds)) {
			describeKind(inv.stdout, kind, p.Kinds[kind], p)
		}
	}
	switch file.Login.Kind {
	case "oidc":
		fmt.Fprintf(inv.stdout, "\nPeople log in at %s.\n", file.Login.Issuer)
	case "oauth":
		fmt.Fprintf(inv.stdout, "\nPeople log in at %s.\n", file.Login.AuthorizationURL)
	}
	if file.Network.Given {
		fmt.Fprintln(inv.stdout, "\n"+describeNetwork(file.Network, inv.settings.Network))
	}
	for _, w := range file.Packages.Warnings() {
		fmt.Fprintln(inv.stdout, "\nWarning: "+w)
	}
	return nil
}

// describeNetwork says which hosts runs may name, and how much they may send there.
func describeNetwork(n serviceconfig.Network, mode string) string {
	if mode == networkOff {
		return "Runs may name no hosts, since SANDBOX_NETWORK is off."
	}
	text := "Runs may name every public host"
	if n.Allow != nil {
		text = "Runs may name these hosts: " + cmp.Or(strings.Join(n.Allow, ", "), "none")
	}
	if n.UploadBytes > 0 {
		return fmt.Sprintf("%s. A run may send at most %d bytes there.", text, n.UploadBytes)
	}
	return text + "."
}

// describeKind says which packages of a kind code may install, and from where.
func describeKind(w io.Writer, name string, k packages.Kind, p *serviceconfig.Packages) {
	what := "wheels only"
	if !p.WheelsOnly {
		what = "wheels and source"
	}
	if name != packages.PyPI {
		what = "without scripts"
	}
	fmt.Fprintf(w, "\nPackages of %s, %s, %s:\n", name, ofAge(p.MinAge), what)
	rest := "the index of this host"
	for _, x := range k.Indexes {
		if len(x.Names) == 0 {
			rest = x.URL
			continue
		}
		own := ""
		if x.MinAge != nil {
			own = ", " + ofAge(*x.MinAge)
		}
		fmt.Fprintf(w, "  %s: %s%s\n", strings.Join(x.Names, ", "), x.URL, own)
	}
	fmt.Fprintf(w, "  all other names: %s\n", rest)
	if k.Allow != nil {
		fmt.Fprintf(w, "  allowed of these: %s\n", cmp.Or(strings.Join(k.Allow, ", "), "none"))
	}
	if len(k.Deny) > 0 {
		fmt.Fprintf(w, "  denied: %s\n", strings.Join(k.Deny, ", "))
	}
}

func ofAge(min time.Duration) string {
	if min == 0 {
		return "of any age"
	}
	return "at least " + packages.Age(min) + " old"
}

// checkServices checks the configuration file for doctor.
func checkServices(inv *invocation) []sandbox.Check {
	name := inv.settings.Config
	if name == "" {
		return nil
	}
	file, err := loadServices(name, inv.env)
	if err != nil {
		return []sandbox.Check{{Name: "services", Status: sandbox.Fail, Detail: err.Error(),
			Fix: "correct " + name + " (SANDBOX_CONFIG); check it with mcp-code-sandbox proxy validate " + name}}
	}
	checks := []sandbox.Check{{Name: "services", Detail: fmt.Sprintf("%d in %s", len(file.Services), name)}}
	if u, err := url.Parse(inv.settings.PublicBaseURL); file.Login.Kind != "" && err == nil && u.Host != "" {
		if err := oauth.CheckIssuer(u); err != nil { // the server would not start
			checks = append(checks, sandbox.Check{Name: "logins", Status: sandbox.Fail, Detail: err.Error(), Fix: "set PUBLIC_BASE_URL to the https address at which people reach this server"})
		}
	}
	return checks
}

// loadServices reads a configuration file and the secrets it refers to.
func loadServices(name string, env map[string]string) (*serviceconfig.File, error) {
	file, err := serviceconfig.Load(name, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		return nil, fmt.Errorf("%s cannot be used:\n  %s", name, strings.ReplaceAll(err.Error(), "\n", "\n  "))
	}
	return file, nil
}

type proxyAuditCmd struct {
	File string `arg:"" optional:"" type:"path" help:"The audit trail; default: audit/proxy.jsonl under the root."`
}

// Run verifies the hash chain.
func (c *proxyAuditCmd) Run(inv *invocation) error {
	name := c.File
	if name == "" {
		name = filepath.Join(inv.settings.Root, auditFile)
	}
	v, err := audit.VerifyFile(name)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return explainDenied(err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist: nothing has been audited yet, or SANDBOX_ROOT is another directory", name)
	case err != nil:
		return fmt.Errorf("%s was changed or is damaged: %w", name, err)
	case v.Last == 0:
		fmt.Fprintf(inv.stdout, "%s is empty: nothing has been audited yet\n", name)
	default:
		fmt.Fprintf(inv.stdout, "%s: records %d to %d are intact: %s\n", name, v.First, v.Last, v.Hash)
	}
	return nil
}
