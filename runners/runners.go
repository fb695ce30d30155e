// Package runners holds the definitions of the language environments: one directory per runner with its runner.json, and
// one per environment with the locked list of its libraries and what is installed beside them. They are the only source
// for the jail, the images and the descriptions of the tools.
//
// The package is data. How definitions are read, and environments found and installed, is internal/runner's business.
package runners

import "embed"

// Files holds everything in this directory but Go code.
//
//go:embed python node nodejs typescript javascript shell
var Files embed.FS

// Names returns the runners in the order in which they are listed to clients.
func Names() []string { return []string{"python", "typescript", "javascript", "shell"} }
