//go:build !linux

// Package runinit exists on Linux only.
package runinit
