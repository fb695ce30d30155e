// Package wrapper is the backend of environments that isolate themselves: contract 5's directories
// with bin/run, which takes code on its stdin, and bin/session-run, which keeps state and speaks
// length-prefixed JSON.
//
// Such a program belongs to the operator and runs outside the jail. The package limits, times and
// kills it, and passes it nothing of a caller but code. It treats a wrapper's output as hostile:
// the code that runs inside may have taken it over.
package wrapper

// UID is the host uid and gid of wrappers if the server is root. The jail's sandboxes have another
// one, so that a wrapper cannot signal their processes.
const UID = 61001
