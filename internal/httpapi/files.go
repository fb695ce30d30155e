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
	"mcp-code-sandbox/internal/signedurl"
)

// filePolicy makes a file that a browser opens all the same a document without scripts, origin or network.
const filePolicy = "sandbox; default-src 'none'; frame-ancestors 'none'"

// uploadTime is how long one PUT may take.
const uploadTime = 15 * time.Minute

// files serves /files/{id}/{path}: GET and HEAD with a signed link, PUT with a one-time upload link. The
// signature is the only right that is asked for; it names one file of one session.
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
	end, ok := f.transfers.begin(w, r, id+"/"+name, f.files.LinkCaller(id))
	if !ok {
		return
	}
	defer end()
	file, info, err := f.files.OpenLink(r.Context(), id, name)
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
	if r.ContentLength > f.maxUpload { // before the ticket is spent
		f.fail(w, r, &http.MaxBytesError{Limit: f.maxUpload})
		return
	}
	end, ok := f.transfers.begin(w, r, "upload "+ticket, f.files.LinkCaller(id))
	if !ok {
		return
	}
	defer end()
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(uploadTime))
	link, err := f.files.ReceiveUpload(r.Context(), ticket, id, name, http.MaxBytesReader(w, r.Body, f.maxUpload))
	if err != nil {
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime)) // for the rest of the body, which nobody wants
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

// refuse answers a link that grants nothing.
func (f *files) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, signedurl.ErrExpired) {
		writeError(w, r, http.StatusForbidden, "this link has expired; ask for a new one")
		return
	}
	writeError(w, r, http.StatusForbidden, "the link's signature is missing or wrong; copy the whole link, the part after ? included. "+
		"A whole link is of earlier settings or an earlier release of the server: ask for a new one")
}

// statusOf maps the executor's refusals to HTTP, here and nowhere else.
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
	var refusal *executor.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeError(w, r, http.StatusRequestEntityTooLarge, "the file is larger than "+size(tooLarge.Limit)+", the most that this server takes")
	case errors.As(err, &refusal) && statusOf[refusal.Code] != 0:
		if statusOf[refusal.Code] == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "5")
		}
		writeError(w, r, statusOf[refusal.Code], refusal.Message)
	case errors.Is(err, fs.ErrNotExist):
		writeError(w, r, http.StatusNotFound, "file not found")
	case errors.Is(err, context.Canceled):
		// nobody is listening
	default:
		f.log.Error("[HTTP] a file could not be served", "method", r.Method, "error", err)
		writeError(w, r, http.StatusInternalServerError, "internal error; the server's log has the details")
	}
}

// disposition is RFC 6266's header: a plain name for old clients, the exact one by RFC 5987.
func disposition(name string) string {
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '%' {
			return '_'
		}
		return r
	}, name)
	return `attachment; filename="` + plain + `"; filename*=UTF-8''` + encodeExtValue(name)
}

// encodeExtValue escapes all but RFC 5987's attr-char.
func encodeExtValue(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$&+-.^_`|~", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}

// size is a number of bytes for people.
func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return strconv.FormatFloat(float64(n)/(1<<20), 'g', 4, 64) + " MB"
}
