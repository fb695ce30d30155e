//go:build !linux

package main

// backends is empty: the jail needs Linux.
func backends() []choice { return nil }
