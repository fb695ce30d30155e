// Package runners holds the definitions of the language environments: a directory for each runner
// with its runner.json, and one for each environment with the lock of its libraries and the
// programs that are installed with them. The jail, the images and the tool descriptions use them.
//
// The package is data. internal/runner reads it, and finds and installs environments.
package runners

import "embed"

// Files holds the directories of this package.
//
//go:embed python node nodejs typescript javascript shell
var Files embed.FS

// Names returns the runners in the order of list_runners.
func Names() []string { return []string{"python", "typescript", "javascript", "shell"} }
