// Package sandboxtest is the conformance suite of sandbox backends: what a run may do, what it must
// not be able to do, and that nothing is left after it. Every backend must pass all of it.
//
// The attacks are Python programs that run inside and print what they achieved. They need
// /usr/bin/python3 and a shell in the sandbox.
package sandboxtest
