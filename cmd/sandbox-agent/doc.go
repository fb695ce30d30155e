//go:build !linux

// Command sandbox-agent runs inside sandboxes, on Linux only.
package main

func main() { panic("sandbox-agent runs on Linux only") }
