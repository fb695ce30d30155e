//go:build !linux

package doctor

import "runtime"

// System is the machine this runs on. There is nothing to examine on it.
func System() Host { return Host{OS: runtime.GOOS} }
