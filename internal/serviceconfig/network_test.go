package serviceconfig_test

import (
	"slices"
	"strings"
	"testing"
)

// A file may configure the network only.
func TestNetwork(t *testing.T) {
	f, err := load(t, `{"network": {"allow": ["api.example.com", "*.example.org:443"], "uploadBytes": 5e6}}`)
	if err != nil || !slices.Equal(f.Network.Allow, []string{"api.example.com", "*.example.org:443"}) || f.Network.UploadBytes != 5_000_000 {
		t.Errorf("%+v, %v", f, err)
	}
	// An empty list allows nothing, and none everything.
	if f, err := load(t, `{"network": {"allow": []}}`); err != nil || f.Network.Allow == nil {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := load(t, `{"network": {}}`); err != nil || f.Network.Allow != nil || !f.Network.Given {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := load(t, `{"packages": {}}`); err != nil || f.Network.Given {
		t.Errorf("%+v, %v", f, err)
	}
	for text, want := range map[string]string{
		`{"network": []}`:                                   "network: must be an object",
		`{"network": {"allowed": []}}`:                      "network.allowed: is unknown",
		`{"network": {"allow": "api.example.com"}}`:         "network.allow: must be a list",
		`{"network": {"allow": null}}`:                      "network.allow: must not be null: remove it",
		`{"network": {"allow": [null]}}`:                    "network.allow[0]: must be a string",
		`{"network": {"uploadBytes": null}}`:                "network.uploadBytes: must not be null",
		`{"network": null, "packages": {}}`:                 "network: must not be null",
		`{"packages": null, "network": {}}`:                 "packages: must not be null",
		`{"network": {"allow": ["a.example", "10.0.0.1"]}}`: "network.allow[1]: \"10.0.0.1\": is an IP address",
		`{"network": {"allow": ["*.com"]}}`:                 "network.allow[0]: ",
		`{"network": {"uploadBytes": 0}}`:                   "network.uploadBytes: must be a number",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
