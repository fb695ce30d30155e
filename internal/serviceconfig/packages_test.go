package serviceconfig_test

import (
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/packages"
	"mcp-code-sandbox/internal/serviceconfig"
)

// loadPackages reads a file whose only section is packages.
func loadPackages(t *testing.T, section string) (*serviceconfig.Packages, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(name, []byte(`{"packages": `+section+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := serviceconfig.Load(name, func(name string) (string, bool) { return "t0k3n", name == "TOKEN" })
	if err != nil {
		return nil, err
	}
	return f.Packages, nil
}

func TestPackages(t *testing.T) {
	p, err := loadPackages(t, `{"minAge": "7d", "wheelsOnly": false, "cacheBytes": 10000000, "pypi": {"deny": ["x-*"], "private": [{"names": ["acme-*"], "minAge": 0,
		"index": "https://p.example/simple", "userAuthentication": {"type": "bearer", "token": {"$env": "TOKEN"}}, "allowPrivateAddresses": ["10.0.0.0/8"]}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	private := p.Kinds[packages.PyPI].Indexes[0]
	if p.MinAge != 7*24*time.Hour || p.WheelsOnly || p.CacheBytes != 1e7 || private.URL != "https://p.example/simple" || private.Names[0] != "acme-*" ||
		private.Header != "Authorization" || private.Credential.Reveal() != "Bearer t0k3n" || len(private.AllowPrivate) != 1 ||
		private.MinAge == nil || *private.MinAge != 0 {
		t.Errorf("%+v", p)
	}
	p.Enable([]string{packages.PyPI, packages.NPM})
	err = p.Complete(func(kind string) ([]packages.Index, error) {
		return []packages.Index{{URL: "https://host.example/" + kind}}, nil
	})
	if err != nil || len(p.Kinds[packages.PyPI].Indexes) != 2 || p.Kinds[packages.NPM].Indexes[0].URL != "https://host.example/npm" || p.Kinds[packages.PyPI].Deny[0] != "x-*" {
		t.Errorf("%+v, %v", p, err)
	}
	p, err = loadPackages(t, `{"npm": {"index": "https://n.example"}}`)
	if err != nil || len(p.Kinds) != 1 || p.MinAge != packages.DefaultMinAge || !p.WheelsOnly {
		t.Errorf("%+v, %v", p, err)
	}
	if err := p.Complete(func(string) ([]packages.Index, error) { return nil, errors.New("asked") }); err != nil {
		t.Errorf("the host's configuration is used although the file names an index: %v", err)
	}
	if p, err = loadPackages(t, `{"minAge": 0}`); err != nil || len(p.Kinds) != 2 || p.MinAge != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestCAFile: a relative path is below the directory of the file, as for $file.
func TestCAFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "config.json")
	if err := os.WriteFile(name, []byte(`{"packages": {"npm": {"index": "https://n.example", "caFile": "ca.pem"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(string) (string, bool) { return "", false }
	if _, err := serviceconfig.Load(name, none); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "ca.pem")) {
		t.Errorf("%v", err)
	}
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := serviceconfig.Load(name, none)
	if err != nil || f.Packages.Kinds[packages.NPM].Indexes[0].CAFile != filepath.Join(dir, "ca.pem") {
		t.Errorf("%+v %v", f, err)
	}
}

// TestPackagesWarnings: what lists shut out is worth a warning, for each kind.
func TestPackagesWarnings(t *testing.T) {
	p, err := loadPackages(t, `{"npm": {"allow": []}, "pypi": {"allow": ["shapely"], "private": [{"names": ["acme-lib"], "index": "https://p.example/simple"}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	if list := p.Warnings(); len(list) != 2 || !strings.HasPrefix(list[0], "packages.npm.allow is empty") || !strings.Contains(list[1], "add acme-lib to packages.pypi.allow") {
		t.Errorf("%q", list)
	}
}

func TestMinAge(t *testing.T) {
	for value, want := range map[string]time.Duration{
		`"0.5d"`: 12 * time.Hour, `"3d"`: 72 * time.Hour, `"36h"`: 36 * time.Hour, `0.5`: 12 * time.Hour, `"0"`: 0, `"3650d"`: 3650 * 24 * time.Hour,
	} {
		if p, err := loadPackages(t, `{"minAge": `+value+`}`); err != nil || p.MinAge != want {
			t.Errorf("%s: %v, %v", value, p, err)
		}
	}
}

func TestPackagesRefused(t *testing.T) {
	for section, want := range map[string]string{
		`{"cargo": {}}`:                 "packages.cargo",
		`{"minAge": "soon"}`:            "packages.minAge",
		`{"minAge": "-3d"}`:             "packages.minAge",
		`{"minAge": "99999999999999d"}`: "packages.minAge",
		`{"minAge": "nand"}`:            "packages.minAge",
		`{"minAge": "d"}`:               "packages.minAge",
		`{"minAge": "88000h"}`:          "packages.minAge",
		`{"minAge": 3651}`:              "packages.minAge",
		`{"wheelsOnly": "no"}`:          "packages.wheelsOnly",
		`{"cacheBytes": 1}`:             "packages.cacheBytes: must be a number of bytes, 1048576 or more",
		`{"pypi": {"index": "x"}}`:      "packages.pypi.index",
		`{"pypi": {"private": [{}]}}`:   "packages.pypi.private[0].names",
		`{"pypi": {"private": {}}}`:     "packages.pypi.private",
		`{"pypi": {"caFile": "/ca"}}`:   "packages.pypi.index",
		`{"minAge": null}`:              "packages.minAge: must not be null: remove it",
		`{"wheelsOnly": null}`:          "packages.wheelsOnly: must not be null",
		`{"pypi": null}`:                "packages.pypi: must not be null",
		`{"pypi": {"deny": null}}`:      "packages.pypi.deny: must not be null",
		`{"npm": {"private": [null]}}`:  "packages.npm.private[0]: must be an object",
		`{"npm": {"private": [{"names": ["x"], "index": "https://n.example", "caFile": null}]}}`:         "packages.npm.private[0].caFile: must not be null",
		`{"npm": {"index": "http://n.example"}}`:                                                         "packages.npm.index: must start with https://, since its pages and hashes could be changed on the way",
		`{"npm": {"index": "http://n.example", "userAuthentication": {"type": "bearer", "token": "t"}}}`: "since a secret is sent there",
		`{"npm": {"index": "https://n.example", "userAuthentication": {"type": "oauth"}}}`:               "packages.npm.userAuthentication.type",
	} {
		if _, err := loadPackages(t, section); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", section, err, want)
		}
	}
}
