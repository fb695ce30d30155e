package hostname_test

import (
	"testing"

	"mcp-code-sandbox/internal/hostname"
)

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.1.2.3": true, "::1": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "localhost.example.com": false, "127.1": false,
		"::1%lo": false, "[::1]": false, "127.0.0.1:80": false,
	} {
		if got := hostname.IsLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %t, want %t", host, got, want)
		}
	}
}
