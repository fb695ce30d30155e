// Package wrapper is the backend of environments that isolate themselves: contract 5's directories with bin/run, which
// takes code on its stdin, and bin/session-run, which keeps state and speaks length-prefixed JSON.
//
// Such a program is the operator's own and is started as it is, outside the jail: this package limits, times and kills it,
// and never hands it anything of a caller's but code. No agent runs inside, so the package speaks the agent's side of the wire
// protocol itself, over a pipe within the server; sessions cannot tell the difference. What comes from a wrapper is
// hostile: the code that runs in it may have taken it over.
package wrapper

// UID is the host uid and gid of wrappers when the server is root. It is not that of the jail's sandboxes, whose processes
// a wrapper could otherwise signal.
const UID = 61001
