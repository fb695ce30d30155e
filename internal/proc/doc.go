//go:build !linux

// Package proc exists on Linux only.
package proc
