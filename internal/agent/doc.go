//go:build !linux

// Package agent is process 1 of a sandbox. Other systems have its configuration only.
package agent
