//go:build !linux

package pool

// Machine returns a Config's Budget for this machine, of which nothing is known.
func Machine() func() (cpu, memory bool) {
	return func() (bool, bool) { return true, true }
}
