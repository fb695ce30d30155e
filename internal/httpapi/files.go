package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/mediatype"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/signedurl"
)

// filePolicy denies scripts, an origin and network to a file, even if a browser displays it.
const filePolicy = "sandbox; default-src 'none'; frame-ancestors 'none'"

const (
	uploadTime = 15 * time.Minute // for one PUT

	// mostPerLink is how many transfers one link may have at once. Download managers use up to 16.
	mostPerLink = 32
)

// files serves /files/{id}/{path}: GET and HEAD with a signed link, PUT with a one-time upload
// link. The signature, for one file of one session, is all that a client needs.
type files struct {
	files     Files
	signer    Verifier
	maxUpload int64
	transfers *transfers
	log       *slog.Logger
}

func (f *files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, name, err := signedurl.ParsePath(r.URL.EscapedPath())
	if err != nil {
		writeError(w, r, http.StatusBadRequest, "bad file address: "+err.Error())
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeError(w, r, http.StatusForbidden, "the link's query is damaged; copy the whole link")
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		f.download(w, r, id, name, query)
	case http.MethodPut:
		f.upload(w, r, id, name, query)
	default:
		w.Header().Set("Allow", "GET, HEAD, PUT")
		writeError(w, r, http.StatusMethodNotAllowed, "use GET or HEAD to download, PUT to upload")
	}
}

func (f *files) download(w http.ResponseWriter, r *http.Request, id, name string, query url.Values) {
	if err := f.signer.Verify(id, name, query); err != nil {
		f.refuse(w, r, err)
		return
	}
	end, err := f.transfers.begin(r, id+"/"+name, f.files.LinkCaller(id))
	if err != nil {
		refuseTransfer(w, r, err)
		return
	}
	defer end()
	file, info, err := f.files.OpenLink(id, name)
	if err != nil {
		f.fail(w, r, err)
		return
	}
	defer file.Close()

	h := w.Header()
	h.Set("Content-Type", mediatype.ContentType(name))
	h.Set("Content-Disposition", disposition(path.Base(name)))
	h.Set("Content-Security-Policy", filePolicy)
	h.Set("Cache-Control", "private, no-store")
	http.ServeContent(w, r, "", info.ModTime(), file)
}

func (f *files) upload(w http.ResponseWriter, r *http.Request, id, name string, query url.Values) {
	ticket, err := f.signer.VerifyUpload(id, name, query)
	if err != nil {
		f.refuse(w, r, err)
		return
	}
	if r.ContentLength > f.maxUpload { // before the ticket is used up
		f.fail(w, r, &http.MaxBytesError{Limit: f.maxUpload})
		return
	}
	end, err := f.transfers.begin(r, "upload "+ticket, f.files.LinkCaller(id))
	if err != nil {
		refuseTransfer(w, r, err)
		return
	}
	defer end()
	setReadDeadline(w, time.Now().Add(uploadTime))
	link, err := f.files.ReceiveUpload(r.Context(), ticket, id, name, http.MaxBytesReader(w, r.Body, f.maxUpload))
	if err != nil {
		setReadDeadline(w, time.Now().Add(bodyTime)) // for the rest of the body
		f.fail(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusCreated, struct {
		Success bool   `json:"success"`
		Name    string `json:"name"`
		Size    int64  `json:"size_bytes"`
		URL     string `json:"url"`
	}{true, link.Name, link.Size, link.URL})
}

// refuse answers a link that is not valid.
func (f *files) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, signedurl.ErrExpired) {
		writeError(w, r, http.StatusForbidden, "this link has expired; ask for a new one")
		return
	}
	writeError(w, r, http.StatusForbidden, "the link's signature is missing or wrong; copy the whole link, including the part after ?. "+
		"A complete link may be from earlier settings or an earlier release of the server: ask for a new one")
}

// statusOf maps the executor's refusals to HTTP. It is the only place that does so.
var statusOf = map[executor.Code]int{
	executor.CodeInvalidID:       http.StatusBadRequest,
	executor.CodeInvalidPath:     http.StatusBadRequest,
	executor.CodeFileExists:      http.StatusConflict,
	executor.CodeFileTooLarge:    http.StatusRequestEntityTooLarge,
	executor.CodeQuotaExceeded:   http.StatusInsufficientStorage,
	executor.CodeDiskFull:        http.StatusInsufficientStorage,
	executor.CodeLinkExpired:     http.StatusGone,
	executor.CodeSessionNotFound: http.StatusNotFound,
	executor.CodeMaxSessions:     http.StatusServiceUnavailable,
	executor.CodeSessionBusy:     http.StatusServiceUnavailable,
	executor.CodeBusy:            http.StatusServiceUnavailable,
	executor.CodeFileBusy:        http.StatusServiceUnavailable,
}

func (f *files) fail(w http.ResponseWriter, r *http.Request, err error) {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		writeError(w, r, http.StatusRequestEntityTooLarge, "the file is larger than "+size(tooLarge.Limit)+", the most that this server accepts")
		return
	}
	refusal, ok := errors.AsType[*executor.Error](err)
	switch {
	case ok && statusOf[refusal.Code] != 0:
		status := statusOf[refusal.Code]
		if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "5")
		}
		writeError(w, r, status, refusal.Message)
	case errors.Is(err, fs.ErrNotExist):
		writeError(w, r, http.StatusNotFound, "file not found")
	case errors.Is(err, context.Canceled):
		// the client is gone
	default:
		f.log.Error("[HTTP] a file could not be served", "method", r.Method, "error", err)
		writeError(w, r, http.StatusInternalServerError, internalError)
	}
}

// disposition returns RFC 6266's header: a plain name for old clients, and the exact one as in RFC
// 5987.
func disposition(name string) string {
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '%' {
			return '_'
		}
		return r
	}, name)
	exact := strings.ReplaceAll(url.QueryEscape(name), "+", "%20") // a plus is %2B here
	return `attachment; filename="` + plain + `"; filename*=UTF-8''` + exact
}

// size formats a number of bytes for people.
func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return strconv.FormatFloat(float64(n*100>>20)/100, 'f', -1, 64) + " MB"
}

// transfers bounds the files that are sent and received at once: per link, in total, and in shares
// per owner of the file's session. No caller is exempt: anybody may hold a link.
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

// begin counts a transfer until end is called. The error is one of share's.
func (t *transfers) begin(r *http.Request, link, caller string) (end func(), err error) {
	byCaller, err := t.callers.TryAcquire(caller, 1)
	if err != nil {
		return nil, err
	}
	byLink, err := t.links.TryAcquire(link, 1)
	if err != nil {
		byCaller.Release()
		return nil, err
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
	}, nil
}

func refuseTransfer(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, share.ErrLimit) {
		writeRetry(w, r, http.StatusTooManyRequests, "this link is used too often at the same time; try again later")
		return
	}
	writeRetry(w, r, http.StatusServiceUnavailable, "too many files are being transferred; try again later")
}
