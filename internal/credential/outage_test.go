package credential_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/store/storetest"
)

// TestRefreshInOutage: a token that the service has sent is stored as soon as the database is back.
// The service no longer accepts the old one.
func TestRefreshInOutage(t *testing.T) {
	s := newService(t)
	v := newVault(t, openStore(t, storetest.Postgres(t)), root)
	conn := s.connection(v)
	if err := v.Put(t.Context(), "alice", "datadog", credential.Token{Access: "old", Refresh: "refresh-0", Expires: time.Now().Add(-time.Minute)}); err != nil {
		t.Fatal(err)
	}
	asked, stopped := make(chan struct{}), make(chan struct{})
	wait := func(http.ResponseWriter, *http.Request) bool {
		close(asked)
		<-stopped
		return false
	}
	s.answer.Store(&wait)
	refreshed := make(chan error)
	go func() {
		c, err := conn.Credential(context.Background(), "alice")
		if err == nil && c.Value != "Bearer access-1" {
			t.Errorf("%+v", c)
		}
		refreshed <- err
	}()
	<-asked
	start := storetest.Stop(t)
	close(stopped)
	start()
	if err := <-refreshed; err != nil {
		t.Error(err)
	}
	if got, err := v.Get(t.Context(), "alice", "datadog"); err != nil || got.Refresh != "refresh-1" || len(s.revoked) != 0 {
		t.Errorf("%+v, %v; revoked %q", got, err, s.revoked)
	}
}
