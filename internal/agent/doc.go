//go:build !linux

// Package agent is the inside of a sandbox. It exists on Linux only: there, the sandbox is.
package agent
