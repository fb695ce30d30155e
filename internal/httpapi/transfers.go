package httpapi

import (
	"errors"
	"net/http"

	"mcp-code-sandbox/internal/share"
)

// mostPerLink is how many transfers one link may have at once. Download managers use up to 16.
const mostPerLink = 32

// transfers bounds the files that are sent and received at once: per link, in shares per caller
// whose sessions they are of, and in total. Nobody is exempt: who holds a link is not its caller.
type transfers struct {
	links, callers *share.Pool
}

func newTransfers(connections int) *transfers {
	total := int64(max(connections/4, 1))
	return &transfers{
		links:   share.New(share.Config{Capacity: total, Limit: mostPerLink}),
		callers: share.New(share.Config{Capacity: total}),
	}
}

// begin counts a transfer until end is called. If there are too many, it says so to the client.
func (t *transfers) begin(w http.ResponseWriter, r *http.Request, link, caller string) (end func(), ok bool) {
	byCaller, err := t.callers.TryAcquire(caller, 1)
	if err != nil {
		refuseTransfer(w, r, err)
		return nil, false
	}
	byLink, err := t.links.TryAcquire(link, 1)
	if err != nil {
		byCaller.Release()
		refuseTransfer(w, r, err)
		return nil, false
	}
	c := connOf(r)
	c.hold()
	byCaller.Yield(func() {
		byLink.Release()
		c.cut()
	})
	return func() {
		byLink.Release()
		byCaller.Release()
		c.release()
	}, true
}

func refuseTransfer(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Retry-After", "10")
	w.Header().Set("Connection", "close")
	if errors.Is(err, share.ErrLimit) {
		writeError(w, r, http.StatusTooManyRequests, "this link is used too often at the same time; try again later")
		return
	}
	writeError(w, r, http.StatusServiceUnavailable, "too many files are being transferred; try again later")
}
