//go:build !linux

package doctor

import "runtime"

// System returns the machine that this runs on, which only its name describes.
func System() Host { return Host{OS: runtime.GOOS} }
