package door_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/door"
)

// room answers with its name and what it saw.
type room string

func (r room) ServeSandbox(w http.ResponseWriter, req *http.Request, sandboxID string) {
	_, _ = io.WriteString(w, string(r)+" "+sandboxID+" "+req.RequestURI)
}

func (r room) ServeName(_ context.Context, sandboxID, host string, conn net.Conn) {
	_, _ = io.WriteString(conn, string(r)+" "+sandboxID+" "+host)
}

// ask sends a request from a sandbox and returns the answer's status and body.
func ask(t *testing.T, d *door.Door, request string) (int, string) {
	t.Helper()
	here, there := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Serve(context.Background(), "sb", "", there)
	}()
	go func() {
		_, _ = io.WriteString(here, request+" HTTP/1.1\r\nHost: 127.0.0.1:8099\r\nConnection: close\r\n\r\n")
	}()
	res, err := http.ReadResponse(bufio.NewReader(here), nil)
	if err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	body, _ := io.ReadAll(res.Body)
	here.Close()
	<-done
	return res.StatusCode, string(body)
}

func TestRoutes(t *testing.T) {
	all := door.New(door.Config{Rooms: map[string]door.Room{"proxy": room("proxy"), "packages": room("packages")}, Egress: room("egress")})
	none := door.New(door.Config{})
	for request, want := range map[string]string{
		"GET /proxy/a/../b%2f":             "proxy sb /proxy/a/../b%2f",
		"GET /packages/pypi/simple/":       "packages sb /packages/pypi/simple/",
		"CONNECT example.com:443":          "egress sb example.com:443",
		"GET http://example.com/proxy/a":   "egress sb http://example.com/proxy/a",
		"GET http://127.0.0.1:8099/proxy/": "egress sb http://127.0.0.1:8099/proxy/",
		"GET /tools/x":                     "not_found",
		"GET //proxy/x":                    "not_found",
		"GET /PROXY/x":                     "not_found",
		"GET /%70roxy/x":                   "not_found",
	} {
		if status, body := ask(t, all, request); !strings.Contains(body, want) || (status == 200) == (want == "not_found") {
			t.Errorf("%s: %d %s; want %s", request, status, body, want)
		}
		if status, body := ask(t, none, request); status != 404 && status != 403 || !strings.Contains(body, `"error"`) {
			t.Errorf("%s at a door that leads nowhere: %d %s", request, status, body)
		} else if strings.HasPrefix(want, "egress") && !strings.Contains(body, "SANDBOX_NETWORK") {
			t.Errorf("%s: %s does not say what to set", request, body)
		}
	}
}

func TestNames(t *testing.T) {
	for _, tc := range []struct {
		d           *door.Door
		sandbox, to string
		want        string
	}{
		{door.New(door.Config{Egress: room("egress")}), "sb", "db.example.com:5432", "egress sb db.example.com:5432"},
		{door.New(door.Config{Egress: room("egress")}), "", "db.example.com:5432", ""},
		{door.New(door.Config{Rooms: map[string]door.Room{"proxy": room("proxy")}}), "sb", "db.example.com:5432", ""},
	} {
		here, there := net.Pipe()
		go tc.d.Serve(context.Background(), tc.sandbox, tc.to, there)
		if got, _ := io.ReadAll(here); string(got) != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
