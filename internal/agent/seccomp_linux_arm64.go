package agent

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// lastOwn is the last number that this architecture had to itself, before those that all share.
const lastOwn = unix.SYS_KEXEC_FILE_LOAD

var deniedOnArch []uint32
