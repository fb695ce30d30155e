//go:build !linux && !darwin

package runner

// lockDir does nothing: environments are only installed on Linux.
func lockDir(string) (unlock func(), err error) { return func() {}, nil }
