package packages

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestHostIndexes: the mirror finds what the host's own clients are configured to use.
func TestHostIndexes(t *testing.T) {
	basic := func(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }
	const fallback = "https://default.example.com/"
	for _, test := range []struct {
		name, kind string
		env, files map[string]string
		want       Index
		credential string
		warning    string
	}{
		{name: "nothing", kind: PyPI, want: Index{URL: fallback}},
		{name: "a variable", kind: PyPI, env: map[string]string{"PIP_INDEX_URL": "https://u:p@a.example/simple", "PIP_CERT": "/ca"},
			files: map[string]string{"/etc/pip.conf": "[global]\nindex-url=https://b.example\n"}, want: Index{URL: "https://a.example/simple", CAFile: "/ca"}, credential: basic("u:p")},
		{name: "files", kind: PyPI, files: map[string]string{"/etc/pip.conf": "[global]\nindex-url = https://b.example\n", "/h/.config/pip/pip.conf": "# x\n[global]\nindex_url = https://c.example\ncert=/c\n"},
			want: Index{URL: "https://c.example", CAFile: "/c"}},
		{name: "the install section", kind: PyPI, files: map[string]string{"/h/.pip/pip.conf": "[install]\nindex-url = https://d.example\nextra-index-url = https://e.example\n", "/own": "[global]\nindex-url = https://f.example"},
			env: map[string]string{"PIP_CONFIG_FILE": "/own"}, want: Index{URL: "https://d.example"}, warning: "extra-index-url"},
		{name: "no file", kind: PyPI, files: map[string]string{"/etc/pip.conf": "[global]\nindex-url = https://b.example\n"}, env: map[string]string{"PIP_CONFIG_FILE": "/dev/null"}, want: Index{URL: fallback}},
		{name: "netrc", kind: PyPI, env: map[string]string{"PIP_INDEX_URL": "https://a.example/simple"}, files: map[string]string{"/h/.netrc": "machine b.example login x password y\nmachine a.example\n login me\n password pw\ndefault login z"},
			want: Index{URL: "https://a.example/simple"}, credential: basic("me:pw")},
		{name: "pip's other spellings", kind: PyPI, files: map[string]string{"/etc/pip.conf": "; x\n[global]\nindex-url = https://b.example\nINDEX_URL :\n  https://c.example\n"}, want: Index{URL: "https://c.example"}},
		{name: "no index", kind: PyPI, env: map[string]string{"PIP_NO_INDEX": "1"}, want: Index{URL: fallback}, warning: "PIP_NO_INDEX"},
		{name: "an index after all", kind: PyPI, env: map[string]string{"PIP_NO_INDEX": "0"}, files: map[string]string{"/etc/pip.conf": "[global]\nno-index=true\n"}, want: Index{URL: fallback}},
		{name: "loopback", kind: PyPI, env: map[string]string{"PIP_INDEX_URL": "http://localhost:3141/simple"}, want: Index{URL: "http://localhost:3141/simple"}},
		{name: "a private address", kind: NPM, env: map[string]string{"npm_config_registry": "http://10.1.2.3/npm"}, want: Index{URL: "http://10.1.2.3/npm"}},
		{name: "a proxy", kind: PyPI, env: map[string]string{"HTTPS_PROXY": "http://proxy.example"}, want: Index{URL: fallback}, warning: "without a proxy"},
		{name: "nothing", kind: NPM, want: Index{URL: fallback}},
		{name: "a token", kind: NPM, env: map[string]string{"TOKEN": "t0"}, files: map[string]string{"/h/.npmrc": "registry=https://a.example/npm/team/\n//a.example/npm/:_authToken=${TOKEN}\ncafile=\"/ca\"\n"},
			want: Index{URL: "https://a.example/npm/team/", CAFile: "/ca"}, credential: "Bearer t0"},
		{name: "another host's token", kind: NPM, files: map[string]string{"/h/.npmrc": "registry=https://a.example/\n//b.example/:_authToken=t0\n"}, want: Index{URL: "https://a.example/"}},
		{name: "a password", kind: NPM, env: map[string]string{"npm_config_registry": "https://a.example"}, files: map[string]string{"/etc/npmrc": "//a.example/:username=me\n//a.example/:_password=cHc=\n"},
			want: Index{URL: "https://a.example"}, credential: basic("me:pw")},
	} {
		env := map[string]string{"HOME": "/h"}
		for k, v := range test.env {
			env[k] = v
		}
		host := Host{Env: env, Ask: func(context.Context, string) (string, error) { return fallback, nil }, ReadFile: func(path string) ([]byte, error) {
			if text, ok := test.files[path]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		}}
		list, warnings, err := host.Indexes(t.Context(), test.kind)
		if err != nil || len(list) != 1 || list[0].URL != test.want.URL || list[0].CAFile != test.want.CAFile || list[0].Credential.Reveal() != test.credential {
			t.Errorf("%s %s: %+v %v", test.kind, test.name, list, err)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, test.warning) || test.warning == "" && got != "" {
			t.Errorf("%s %s: %s", test.kind, test.name, got)
		}
	}
}

// TestHostVariables: npm's files refer to variables as well.
func TestHostVariables(t *testing.T) {
	host := Host{Env: map[string]string{"HOME": "/h", "NPM_CONFIG_USERCONFIG": "/own"}, ReadFile: func(path string) ([]byte, error) {
		return []byte("//a.example/:_auth=${USER_NAME}:${" + strings.ToUpper(strings.TrimPrefix(path, "/")) + "_TOKEN}\nemail=$NOT ${"), nil
	}}
	names := host.Variables()
	for _, name := range []string{"USER_NAME", "ETC/NPMRC_TOKEN", "OWN_TOKEN", "PIP_INDEX_URL", "npm_config_registry", "NPM_CONFIG_HTTPS_PROXY"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is missing in %q", name, names)
		}
	}
	if slices.Contains(names, "H/.NPMRC_TOKEN") || slices.Contains(names, "NOT") {
		t.Errorf("%q", names)
	}
}

// TestHostScopes: a scope's registry has the scope's names.
func TestHostScopes(t *testing.T) {
	host := Host{Env: map[string]string{"HOME": "/h"}, ReadFile: func(path string) ([]byte, error) {
		if path != "/h/.npmrc" {
			return nil, os.ErrNotExist
		}
		return []byte("@acme:registry=https://a.example/\n//a.example/:_auth=eDp5\nregistry=https://b.example/"), nil
	}}
	list, _, err := host.Indexes(t.Context(), NPM)
	if err != nil || len(list) != 2 || list[0].Names[0] != "@acme/*" || list[0].Credential.Reveal() != "Basic eDp5" || list[1].URL != "https://b.example/" || !list[1].Credential.IsZero() {
		t.Errorf("%+v %v", list, err)
	}
	host = Host{ReadFile: func(string) ([]byte, error) { return nil, os.ErrNotExist }, Ask: func(context.Context, string) (string, error) { return "", errors.New("no client") }}
	if _, _, err := host.Indexes(t.Context(), PyPI); err == nil || !strings.Contains(err.Error(), "packages.pypi.index in SANDBOX_CONFIG") {
		t.Errorf("%v", err)
	}
}

// TestHostRefused: an address that the section would refuse, and a file that pip cannot read, are
// errors that name the variable or the file, and no password.
func TestHostRefused(t *testing.T) {
	const plain = "must start with https://, since its pages and hashes could be changed on the way"
	for _, test := range []struct {
		kind       string
		env, files map[string]string
		want       []string
	}{
		{PyPI, map[string]string{"PIP_INDEX_URL": "http://u:s3cret@example.invalid/simple"}, nil, []string{"PIP_INDEX_URL names example.invalid, which " + plain, "packages.pypi.index"}},
		{PyPI, nil, map[string]string{"/etc/pip.conf": "[global]\nindex-url=http://8.8.8.8/simple\n"}, []string{"index-url in /etc/pip.conf names 8.8.8.8, which " + plain}},
		{PyPI, nil, nil, []string{"this host's pip names default.example.com, which " + plain}},
		{PyPI, map[string]string{"PIP_INDEX_URL": "s3cret"}, nil, []string{"PIP_INDEX_URL is not the address of an index"}},
		{PyPI, map[string]string{"PIP_INDEX_URL": "https://u:s3cret@h:x/"}, nil, []string{"PIP_INDEX_URL is not the address of an index"}},
		{NPM, map[string]string{"NPM_CONFIG_REGISTRY": "http://example.invalid/"}, nil, []string{"NPM_CONFIG_REGISTRY names example.invalid, which " + plain, "packages.npm.index"}},
		{NPM, map[string]string{"npm_config_registry": "s3cret"}, nil, []string{"npm_config_registry is not the address of an index"}},
		{NPM, map[string]string{"npm_config_registry": "https://n.example"}, map[string]string{"/h/.npmrc": "@acme:registry=http://acme.example/"}, []string{"@acme:registry in /h/.npmrc names acme.example, which " + plain}},
		{NPM, nil, nil, []string{"this host's npm names default.example.com, which " + plain}},
		{PyPI, map[string]string{"PIP_CONFIG_FILE": "/own"}, map[string]string{"/own": "s3cret"}, []string{"pip cannot read its configuration file /own: line 1: file contains no section headers. Correct or remove it"}},
		{PyPI, nil, map[string]string{"/etc/pip.conf": "[global]\n\n  s3cret\n"}, []string{"/etc/pip.conf: line 3: source contains parsing errors"}},
		{PyPI, nil, map[string]string{"/etc/pip.conf": "[global]\nx=1\nX=s3cret\n"}, []string{"line 3: option already exists"}},
		{PyPI, nil, map[string]string{"/etc/pip.conf": "[s3cret]\n[s3cret]\n"}, []string{"line 2: section already exists"}},
		{PyPI, nil, map[string]string{"/etc/pip.conf": "[global]\nx=\xffs3cret"}, []string{"/etc/pip.conf: contains invalid utf-8 characters"}},
	} {
		env := map[string]string{"HOME": "/h"}
		maps.Copy(env, test.env)
		host := Host{Env: env, Ask: func(context.Context, string) (string, error) { return "http://default.example.com/", nil }, ReadFile: func(path string) ([]byte, error) {
			if text, ok := test.files[path]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		}}
		_, _, err := host.Indexes(t.Context(), test.kind)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%+v: %v", test, err)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
}
