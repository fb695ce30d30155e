//go:build !linux

package pool

import "errors"

const canRename = false

// renameNew renames a directory to what must not exist. There is no such step here.
func renameNew(string, string) error { return errors.ErrUnsupported }
