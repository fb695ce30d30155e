package confine

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// lastOwn is the last number of this architecture alone, before those that all architectures share.
const lastOwn = unix.SYS_KEXEC_FILE_LOAD

var deniedOnArch []uint32
