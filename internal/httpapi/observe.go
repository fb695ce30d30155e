package httpapi

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"mcp-code-sandbox/internal/untrusted"
)

// observe logs each request when it has been answered, and survives a panic in it. Neither the query (it signs links)
// nor any body is ever logged.
func observe(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w}
		defer func() {
			p := recover()
			answering := rec.status != 0
			if p != nil && p != http.ErrAbortHandler {
				log.Error("[HTTP] panic while answering", "method", untrusted.Clip(r.Method, maxQuoted), "path", untrusted.Clip(r.URL.Path, maxQuoted), "panic", p, "stack", string(debug.Stack()))
				if !answering {
					writeError(rec, r, http.StatusInternalServerError, "internal error; the server's log has the details")
				}
			}
			level := slog.LevelInfo
			switch {
			case r.URL.Path == "/healthz", r.URL.Path == "/readyz", r.URL.Path == "/metrics":
				level = slog.LevelDebug
			case rec.status >= 500:
				level = slog.LevelWarn
			}
			log.LogAttrs(context.WithoutCancel(r.Context()), level, "[HTTP] "+untrusted.Clip(r.Method, maxQuoted)+" "+untrusted.Clip(r.URL.Path, maxQuoted),
				slog.Int("status", rec.code()), slog.Int64("bytes", rec.bytes),
				slog.Int64("duration_ms", time.Since(start).Milliseconds()), slog.String("remote", r.RemoteAddr))
			if p != nil && (p == http.ErrAbortHandler || answering) {
				panic(http.ErrAbortHandler) // the answer is half out: cut the connection, quietly
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

// recorder notes what was answered. It passes on what streams and file transfers need of the real writer.
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

// Unwrap is for http.ResponseController.
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

// ReadFrom keeps sendfile.
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

func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}
