// Package version holds the version of the program. To release, change the file VERSION and the
// newest heading of CHANGELOG.md: nothing else in the repository states the version.
package version

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var release string

// build names the commit of a development build. The Makefile sets it, to "" on the release's tag.
var build = "devel"

// Release returns the version of the newest release that this source is or follows, such as 0.1.0.
func Release() string { return strings.TrimSpace(release) }

// String returns the release, and the commit in a development build: 0.1.0+9ef52a8-dirty.
func String() string {
	if build == "" {
		return Release()
	}
	return Release() + "+" + build
}
