package serviceconfig_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/proxy"
	"mcp-code-sandbox/internal/serviceconfig"
)

func load(t *testing.T, text string) (*serviceconfig.File, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"config.json": text, "key.txt": "from-a-file\n", "empty.txt": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return serviceconfig.Load(filepath.Join(dir, "config.json"), func(name string) (string, bool) {
		v, ok := map[string]string{"DATADOG_CLIENT_ID": "id-from-env", "DATADOG_CLIENT_SECRET": "secret-from-env", "EMPTY": "", "LINES": "a\nb"}[name]
		return v, ok
	})
}

// contract is contract 3's example.
const contract = `{
  "mcpServers": {
    "datadog": {
      "transportType": "inline",
      "requiresUserToken": true,
      "userAuthentication": {
        "type": "oauth",
        "displayName": "Datadog",
        "clientId": {"$env": "DATADOG_CLIENT_ID"},
        "clientSecret": {"$env": "DATADOG_CLIENT_SECRET"},
        "authorizationUrl": "https://app.datadoghq.com/oauth2/v1/authorize",
        "tokenUrl": "https://app.datadoghq.com/oauth2/v1/token",
        "scopes": ["metrics_read", "logs_read"]
      },
      "proxy": {
        "enabled": true,
        "baseURL": "https://api.datadoghq.com",
        "timeout": 30,
        "defaultAllowedPaths": [
          "/api/v1/**",
          "/api/v2/metrics/**",
          "/api/v2/logs/**"
        ]
      }
    }
  }
}`

func TestContractExample(t *testing.T) {
	f, err := load(t, contract)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Services) != 1 || f.Login.Kind != "" {
		t.Fatalf("%+v", f)
	}
	s := f.Services[0]
	if s.Name != "datadog" || s.DisplayName != "Datadog" || s.Disabled || s.BaseURL.String() != "https://api.datadoghq.com" || s.Timeout != 30*time.Second ||
		!reflect.DeepEqual(s.Defaults, []string{"/api/v1/**", "/api/v2/metrics/**", "/api/v2/logs/**"}) || s.Ceiling != nil || s.Credential != nil {
		t.Errorf("service %+v", s.Service)
	}
	if o := s.OAuth; o == nil || o.Service != "datadog" || o.ClientID != "id-from-env" || o.ClientSecret.Reveal() != "secret-from-env" ||
		o.AuthorizationURL != "https://app.datadoghq.com/oauth2/v1/authorize" || o.TokenURL != "https://app.datadoghq.com/oauth2/v1/token" ||
		!reflect.DeepEqual(o.Scopes, []string{"metrics_read", "logs_read"}) {
		t.Errorf("oauth %+v", o)
	}
}

func TestEverything(t *testing.T) {
	f, err := load(t, `{
		"version": "1",
		"auth": {"type": "oidc", "issuer": "https://login.example.com", "clientId": "c", "clientSecret": {"$file": "key.txt"}, "allowedDomains": ["example.com"]},
		"mcpServers": {
			"zeta": {"command": "x", "args": ["y"], "env": {"A": {"$env": "NOT_SET"}}},
			"off": {"proxy": {"enabled": false, "baseURL": "https://off.example.com"}},
			"key": {"displayName": "Key", "userAuthentication": {"type": "header", "name": "DD-API-KEY", "value": {"$file": "key.txt"}},
				"proxy": {"enabled": true, "baseURL": "http://10.1.2.3:8080/base", "timeout": 0.5, "allowedPaths": ["/api/**"], "defaultAllowedPaths": ["/api/v1/*"], "allowedMethods": ["GET"],
					"allowedHeaders": ["X-Team"], "allowEncodedSlash": true, "allowPrivateAddresses": ["10.0.0.0/8", "fd00::1"], "rateLimit": {"perSecond": 5, "burst": 7}, "tokenRateLimit": {"perSecond": 0.5}}},
			"basic": {"userAuthentication": {"type": "basic", "username": "me"}, "proxy": {"enabled": true, "baseURL": "https://b.example.com"}}
		}}`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range f.Services {
		names = append(names, s.Name)
	}
	if strings.Join(names, " ") != "basic key off" || !f.Services[2].Disabled {
		t.Fatalf("%v", names)
	}
	if f.Login.Kind != "oidc" || f.Login.Issuer != "https://login.example.com" || f.Login.ClientSecret.Reveal() != "from-a-file" || f.Login.AllowedDomains[0] != "example.com" {
		t.Errorf("login %+v", f.Login)
	}
	s := f.Services[1]
	c, err := s.Credential.Credential(t.Context(), "anybody")
	if err != nil || c.Header != "DD-API-KEY" || c.Value != "from-a-file" {
		t.Errorf("credential %+v, %v", c, err)
	}
	if s.DisplayName != "Key" || s.Timeout != 500*time.Millisecond || !s.AllowEncodedSlash || s.Ceiling[0] != "/api/**" || s.Methods[0] != "GET" || s.Headers[0] != "X-Team" ||
		!reflect.DeepEqual(s.AllowPrivate, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::1/128")}) ||
		s.RateLimit != (proxy.Rate{PerSecond: 5, Burst: 7}) || s.TokenRate != (proxy.Rate{PerSecond: 0.5}) {
		t.Errorf("service %+v", s.Service)
	}
}

// A file may configure the login only.
func TestLoginAlone(t *testing.T) {
	f, err := load(t, `{"auth": {"type": "oidc", "issuer": "https://l.example.com", "clientId": "c", "allowedDomains": ["example.com"]}}`)
	if err != nil || f.Login.Kind != "oidc" || len(f.Services) != 0 {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestRefuses: each error names the field, and none shows a secret.
func TestRefuses(t *testing.T) {
	// with replaces a part of the contract's example.
	with := func(old, new string) string {
		if !strings.Contains(contract, old) {
			t.Fatalf("the example has no %s", old)
		}
		return strings.Replace(contract, old, new, 1)
	}
	auth := func(text string) string { return with(`"mcpServers"`, `"auth": `+text+`, "mcpServers"`) }
	bearer := func(token string) string {
		return `{"mcpServers": {"s": {"userAuthentication": {"type": "bearer", "token": ` + token + `}, "proxy": {"enabled": true, "baseURL": "https://a.example.com"}}}}`
	}
	for name, test := range map[string]struct{ text, want string }{
		"not JSON":                {`{"mcpServers": {`, "line 1: the file ends too early"},
		"cut in a string":         {"{\n\"mcpServ", "line 2: the file ends too early"},
		"cut before a value":      {`{"mcpServers":`, "line 1: the file ends too early"},
		"empty":                   {``, "line 1: the file ends too early"},
		"comma at the end":        {"{\"mcpServers\": {},\n}", "line 2: remove the comma before }"},
		"comma in a list":         {with(`"/api/v2/logs/**"`, `"/api/v2/logs/**",`), "line 23: remove the comma before ]"},
		"no comma":                {with(`"enabled": true,`, `"enabled": true`), "line 17: invalid character"},
		"more":                    {contract + "{}", "followed by more text"},
		"twice":                   {with(`"enabled": true,`, `"enabled": true, "enabled": true,`), "duplicate field mcpServers.datadog.proxy.enabled"},
		"deep":                    {strings.Repeat(`[`, 1000), "too deeply"},
		"a list":                  {`[]`, "must be an object"},
		"nothing":                 {`{}`, "none of mcpServers, auth, network and packages is set"},
		"servers of another type": {`{"mcpServers": []}`, "mcpServers: must be an object"},
		"unknown at the top":      {with(`"mcpServers"`, `"mcpservers": {}, "mcpServers"`), "mcpservers: is unknown; did you mean mcpServers?"},
		"unknown in a server":     {with(`"transportType"`, `"transport"`), "mcpServers.datadog.transport: is unknown"},
		"unknown in proxy":        {with(`"timeout": 30`, `"timeOut": 30`), "mcpServers.datadog.proxy.timeOut: is unknown; did you mean timeout?"},
		"unknown in oauth":        {with(`"scopes"`, `"scope"`), "mcpServers.datadog.userAuthentication.scope: is unknown"},
		"field of another kind":   {with(`"displayName": "Datadog",`, `"token": "x",`), "userAuthentication.token: is unknown"},
		"timeout as text":         {with(`"timeout": 30`, `"timeout": "30"`), "mcpServers.datadog.proxy.timeout: must be a number"},
		"timeout 0":               {with(`"timeout": 30`, `"timeout": 0`), "mcpServers.datadog.proxy.timeout: must be a number from"},
		"enabled as text":         {with(`"enabled": true`, `"enabled": "yes"`), "proxy.enabled: must be true or false"},
		"enabled missing":         {with(`"enabled": true,`, ``), "proxy.enabled: is missing"},
		"base missing":            {with(`"baseURL": "https://api.datadoghq.com",`, ``), "proxy.baseURL: is missing"},
		"base without TLS":        {with(`"https://api.datadoghq.com"`, `"http://api.datadoghq.com"`), "proxy.baseURL: must start with https://"},
		"base with user":          {with(`"https://api.datadoghq.com"`, `"https://u:hunter2@api.datadoghq.com"`), "proxy.baseURL: must be an address"},
		"base with query":         {with(`"https://api.datadoghq.com"`, `"https://api.datadoghq.com/?a=1"`), "proxy.baseURL: "},
		"base of another scheme":  {with(`"https://api.datadoghq.com"`, `"file:///etc/passwd"`), "proxy.baseURL: must be an address"},
		"private base":            {with(`"https://api.datadoghq.com"`, `"https://169.254.169.254"`), "proxy.baseURL: "},
		"bad pattern":             {with(`"/api/v1/**"`, `"/api/**/x"`), "mcpServers.datadog.proxy.defaultAllowedPaths: "},
		"pattern of another type": {with(`"/api/v1/**"`, `1`), "mcpServers.datadog.proxy.defaultAllowedPaths[0]: must be a string"},
		"default over ceiling":    {with(`"timeout": 30`, `"allowedPaths": ["/api/v2/**"]`), "mcpServers.datadog.proxy.defaultAllowedPaths: "},
		"bad method":              {with(`"timeout": 30`, `"allowedMethods": ["CONNECT"]`), "mcpServers.datadog.proxy.allowedMethods: "},
		"unknown method":          {with(`"timeout": 30`, `"allowedMethods": ["GETT"]`), `allowedMethods: "GETT" is not a method that can be allowed; use some of GET, HEAD,`},
		"method in lower case":    {with(`"timeout": 30`, `"allowedMethods": ["get"]`), `allowedMethods: "get" is not`},
		"bad network":             {with(`"timeout": 30`, `"allowPrivateAddresses": ["10.0.0.0/33"]`), "proxy.allowPrivateAddresses[0]: must be"},
		"bad rate":                {with(`"timeout": 30`, `"rateLimit": {"perSecond": 0}`), "proxy.rateLimit.perSecond: must be"},
		"no rate":                 {with(`"timeout": 30`, `"rateLimit": {"burst": 1}`), "proxy.rateLimit.perSecond: is missing"},
		"no credential":           {`{"mcpServers": {"s": {"proxy": {"enabled": true, "baseURL": "https://a.example.com"}}}}`, "mcpServers.s.userAuthentication: is missing"},
		"unknown kind":            {with(`"type": "oauth"`, `"type": "manual"`), "userAuthentication.type: must be one of oauth"},
		"token URL without TLS":   {with(`"https://app.datadoghq.com/oauth2/v1/token"`, `"http://app.datadoghq.com/token"`), "userAuthentication.tokenUrl: must start with https://"},
		"own parameter":           {with(`"scopes"`, `"parameters": {"redirect_uri": "https://evil.example.com"}, "scopes"`), "parameters.redirect_uri: is set by the server"},
		"name with a slash":       {with(`"datadog"`, `"data/dog"`), "a name has 1 to 64"},
		"two of one variable":     {with(`"datadog": {`, `"data_dog": {"proxy": {"enabled": false, "baseURL": "https://a.example.com"}}, "data-dog": {"proxy": {"enabled": false, "baseURL": "https://a.example.com"}}, "datadog": {`), "DATA_DOG_TOKEN"},
		"a header of HTTP's own":  {`{"mcpServers": {"s": {"userAuthentication": {"type": "header", "name": "content-length", "value": "x"}, "proxy": {"enabled": true, "baseURL": "https://a.example.com"}}}}`, "userAuthentication.name: is a header field of HTTP itself"},
		"variable not set":        {bearer(`{"$env": "NOPE"}`), "mcpServers.s.userAuthentication.token: the environment variable NOPE is not set"},
		"variable empty":          {bearer(`{"$env": "EMPTY"}`), "the environment variable EMPTY is not set"},
		"control character":       {bearer(`{"$env": "LINES"}`), "userAuthentication.token: contains a line break"},
		"file missing":            {bearer(`{"$file": "none.txt"}`), "mcpServers.s.userAuthentication.token: open "},
		"file empty":              {bearer(`{"$file": "empty.txt"}`), "is empty"},
		"another reference":       {bearer(`{"$vault": "x"}`), "must be a string, {"},
		"two references":          {bearer(`{"$env": "A", "$file": "b"}`), "must be a string, {"},
		"token empty":             {bearer(`""`), "userAuthentication.token: must not be empty"},
		"login of no kind":        {auth(`{"clientId": "c", "allowedEmails": ["a@b.c"]}`), "auth.type: must be oidc or oauth"},
		"login for nobody":        {auth(`{"type": "oidc", "issuer": "https://l.example.com", "clientId": "c"}`), "set auth.allowedDomains or auth.allowedEmails"},
		"domain as an address":    {auth(`{"type": "oidc", "issuer": "https://l.example.com", "clientId": "c", "allowedEmails": ["example.com"]}`), `auth.allowedEmails: "example.com" is not an e-mail address`},
		"address as a domain":     {auth(`{"type": "oidc", "issuer": "https://l.example.com", "clientId": "c", "allowedDomains": ["a@example.com"]}`), `auth.allowedDomains: "a@example.com" is not a domain`},
		"issuer's document":       {auth(`{"type": "oidc", "issuer": "https://l.example.com/.well-known/openid-configuration", "clientId": "c", "allowedDomains": ["*"]}`), "auth.issuer: must not end in /.well-known/openid-configuration; write https://l.example.com"},
		"login without TLS":       {auth(`{"type": "oidc", "issuer": "http://l.example.com", "clientId": "c", "allowedDomains": ["*"]}`), "auth.issuer: must start with https://"},
		"login, unknown field":    {auth(`{"type": "oidc", "issuer": "https://l.example.com", "clientId": "c", "allowedDomain": ["*"]}`), "auth.allowedDomain: is unknown"},
	} {
		f, err := load(t, test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, %v; want %q", name, f, err, test.want)
		}
		if err != nil && (strings.Contains(err.Error(), "secret-from-env") || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "a\nb")) {
			t.Errorf("%s: the error shows a secret: %v", name, err)
		}
	}
	_, err := load(t, strings.NewReplacer(`"timeout": 30`, `"timeout": -1`, `"transportType"`, `"x"`).Replace(contract))
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("two mistakes are told at once: %v", err)
	}
}
