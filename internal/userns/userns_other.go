//go:build !linux

package userns

// Adopt does nothing: only Linux has user namespaces.
func Adopt(string) {}

// Enter does nothing: only Linux has user namespaces.
func Enter(args, environ []string, noRange error) {}
