//go:build !linux

// Package agent is process 1 of a sandbox. On other systems, it has only the configuration.
package agent
