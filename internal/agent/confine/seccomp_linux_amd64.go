package confine

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// lastOwn is the last number of this architecture alone, before those that all architectures share.
const lastOwn = unix.SYS_RSEQ

var deniedOnArch = []uint32{
	unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_IOPERM, unix.SYS_IOPL, unix.SYS_MODIFY_LDT,
	unix.SYS_QUERY_MODULE, unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_USELIB, unix.SYS_USTAT,
}
