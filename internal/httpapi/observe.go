package httpapi

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"mcp-code-sandbox/internal/untrusted"
)

// observe logs each request after its answer, and recovers a panic in its handler. It never logs
// the query, which signs links, or a body.
func observe(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w}
		defer func() {
			p := recover()
			method, path := untrusted.Clip(r.Method, maxQuoted), untrusted.Clip(r.URL.Path, maxQuoted)
			answering := rec.status != 0
			if p != nil && p != http.ErrAbortHandler {
				log.Error("[HTTP] panic while answering", "method", method, "path", path, "panic", p, "stack", string(debug.Stack()))
				if !answering {
					writeError(rec, r, http.StatusInternalServerError, internalError)
				}
			}
			level := slog.LevelInfo
			switch {
			case r.URL.Path == "/healthz", r.URL.Path == "/readyz", r.URL.Path == "/metrics":
				level = slog.LevelDebug
			case rec.status >= 500:
				level = slog.LevelWarn
			}
			log.LogAttrs(context.WithoutCancel(r.Context()), level, "[HTTP] "+method+" "+path,
				slog.Int("status", cmp.Or(rec.status, http.StatusOK)), slog.Int64("bytes", rec.bytes),
				slog.Int64("duration_ms", time.Since(start).Milliseconds()), slog.String("remote", r.RemoteAddr))
			if p != nil && (p == http.ErrAbortHandler || answering) {
				panic(http.ErrAbortHandler) // the client has a part of the answer: close the connection
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

// recorder notes the status and the size of an answer. It keeps what streams and file transfers
// need of the real writer.
type recorder struct {
	http.ResponseWriter
	status   int
	bytes    int64
	accepted func() // called before an answer that is not a refusal; may be nil
}

var (
	_ http.Flusher  = (*recorder)(nil)
	_ io.ReaderFrom = (*recorder)(nil)
)

// Unwrap serves http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	r.begin(status)
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) begin(status int) {
	if r.status != 0 || status < 200 {
		return
	}
	r.status = status
	if status < 400 && r.accepted != nil {
		r.accepted()
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.begin(http.StatusOK)
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// ReadFrom lets the real writer use sendfile.
func (r *recorder) ReadFrom(src io.Reader) (int64, error) {
	r.begin(http.StatusOK)
	n, err := io.Copy(r.ResponseWriter, src)
	r.bytes += n
	return n, err
}

func (r *recorder) Flush() {
	r.begin(http.StatusOK)
	http.NewResponseController(r.ResponseWriter).Flush()
}
