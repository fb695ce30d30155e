//go:build !linux && !darwin

package runner

// lockDir does nothing: Install works on Linux only.
func lockDir(string) (unlock func(), err error) { return func() {}, nil }
