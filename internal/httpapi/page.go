package httpapi

import (
	"embed"
	"net/http"
)

//go:embed page
var pageFS embed.FS

var pageAssets = []string{"page.css", "page.js", "icon.svg"}

// pagePolicy allows the page its own files and nothing else: no inline script or style, no frame, no form, no call.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func pageHandler(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cache-Control", "no-cache")
		http.ServeFileFS(w, r, pageFS, "page/"+name)
	})
}
