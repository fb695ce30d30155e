// Package web has the page that the server shows at /, as `make web` built it from the TypeScript
// in src. What is in dist is committed, so that nobody needs Node.js to build the server, and CI
// builds it anew and compares.
package web

import (
	"embed"
	"io/fs"
)

//go:embed all:dist
var dist embed.FS

// Files are the built page: index.html, and assets with the hash of their content in their name.
func Files() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the name is valid
	}
	return files
}
