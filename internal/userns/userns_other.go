//go:build !linux

package userns

import "io/fs"

// MayChown returns true: only Linux has user namespaces.
func MayChown(fs.FileInfo) bool { return true }

// Adopt does nothing: only Linux has user namespaces.
func Adopt(string) {}

// Enter does nothing: only Linux has user namespaces.
func Enter(args, environ []string, noRange error) {}
