// Package sandboxtest is the conformance suite of sandbox backends: what a run inside may do, what it must
// not be able to do, and what is left when it has ended. A backend passes it whole or is not a backend.
//
// The attacks are programs that run inside, in Python; what they got away with is judged outside. They need
// /usr/bin/python3 and a shell in the sandbox and nothing else.
package sandboxtest
