//go:build !linux

// Package prestart exists on Linux only.
package prestart
