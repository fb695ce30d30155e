// Package web embeds the page at /, which make web builds from the TypeScript in src. The output in
// dist is committed, so that building the server needs no Node.js; CI builds it again and compares.
package web

import (
	"embed"
	"io/fs"
)

//go:embed all:dist
var dist embed.FS

// Files returns the built page: index.html, and assets with the hash of their content in the name.
func Files() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the name is valid
	}
	return files
}
