package closednet

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/logging/logtest"
)

// TestPublicHost: a name that moves stays closed at its old and its new address, and when it cannot
// be resolved any more.
func TestPublicHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer atomic.Pointer[[]netip.Addr]
		var log logtest.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		list := New(t.Context(), Config{PublicHost: "sandbox.example.com", Logger: logger, Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			if a := answer.Load(); a != nil && host == "sandbox.example.com" {
				return *a, nil
			}
			<-ctx.Done() // a resolver that hangs
			return nil, errors.New("no answer")
		}})
		var changes atomic.Int32
		stop := list.Subscribe(func() { changes.Add(1) })
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		go list.follow(ctx, nil)
		closed := func(text string) bool { return list.Contains(netip.MustParseAddr(text)) }
		for _, step := range []struct {
			answer []string
			closed map[string]bool
		}{
			{nil, map[string]bool{"8.8.8.8": false}},
			{[]string{"8.8.8.8", "::ffff:8.8.4.4"}, map[string]bool{"8.8.8.8": true, "8.8.4.4": true}},
			{[]string{"9.9.9.9"}, map[string]bool{"8.8.8.8": true, "9.9.9.9": true}},
			{nil, map[string]bool{"8.8.8.8": true, "9.9.9.9": true, "1.1.1.1": false}},
		} {
			answer.Store(nil)
			if step.answer != nil {
				var addrs []netip.Addr
				for _, a := range step.answer {
					addrs = append(addrs, netip.MustParseAddr(a))
				}
				answer.Store(&addrs)
			}
			before := changes.Load()
			time.Sleep(time.Minute) // of the bubble's clock
			synctest.Wait()
			for text, want := range step.closed {
				if closed(text) != want {
					t.Errorf("%v: %s is closed: %t", step.answer, text, !want)
				}
			}
			if step.answer != nil && changes.Load() == before {
				t.Errorf("%v: subscribers were not called", step.answer)
			}
		}
		if text := log.String(); strings.Count(text, "cannot resolve the host of PUBLIC_BASE_URL") != 2 || !strings.Contains(text, "SANDBOX_NETWORK_DENY") {
			t.Errorf("each outage must be logged once, with its fix: %s", text)
		}
		flood := make([]netip.Addr, 10000)
		for i := range flood {
			flood[i] = netip.AddrFrom4([4]byte{30, byte(i >> 8), byte(i), 1})
		}
		answer.Store(&flood)
		time.Sleep(time.Minute)
		synctest.Wait()
		if all, err := list.ForSandbox(); err != nil || len(all) > 200 {
			t.Errorf("a name with 10000 addresses: %d networks, %v", len(all), err)
		}
		cancel()
		synctest.Wait()
	})
}
