"""Seccomp filter for the process that parses a document (ADR 13).

It denies system calls that no parser needs. All others are allowed, because different versions of the libraries use
different calls.
"""

import ctypes
import errno
import os
import sys
from functools import cache
from typing import Any

PR_GET_SECCOMP = 21
CLONE_THREAD = 0x00010000

# These calls are denied with any arguments. Names that the architecture or libseccomp does not know are skipped.
# Network access. io_uring can create and use sockets without the other calls.
SOCKETS = (
    "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg",
    "recvfrom", "recvmsg", "recvmmsg", "io_uring_setup", "io_uring_enter", "io_uring_register",
)  # fmt: skip
# New processes and programs, and access to other processes.
PROCESSES = (
    "fork", "vfork", "clone3", "execve", "execveat", "setsid", "setpgid", "unshare", "setns", "personality",
    "kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_getfd", "pidfd_send_signal",
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp",
    "migrate_pages", "move_pages",
)  # fmt: skip
# Memory and objects that outlive the process, or that resource limits do not cover.
SHARED_OBJECTS = (
    "shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl",
    "mq_open", "mq_unlink", "memfd_create", "memfd_secret", "keyctl", "add_key", "request_key",
)  # fmt: skip
# Parts of the kernel with many vulnerabilities, and calls that require capabilities.
PRIVILEGED = (
    "bpf", "perf_event_open", "userfaultfd", "fanotify_init", "name_to_handle_at", "open_by_handle_at", "modify_ldt",
    "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
    "mount_setattr", "swapon", "swapoff", "quotactl", "quotactl_fd", "acct", "syslog", "reboot", "kexec_load",
    "kexec_file_load", "init_module", "finit_module", "delete_module", "iopl", "ioperm", "sethostname",
    "setdomainname", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "vhangup", "lookup_dcookie",
)  # fmt: skip
DENIED = (*SOCKETS, *PROCESSES, *SHARED_OBJECTS, *PRIVILEGED)


@cache
def library() -> Any:
    """Return the bindings of libseccomp, or None if they cannot be loaded.

    Must first be called before the sandbox denies file access.
    """
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError):  # no pyseccomp, a broken libseccomp, or no libseccomp
        return None
    return pyseccomp


def can_deny() -> bool:
    """Return whether this system can filter system calls."""
    return sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_GET_SECCOMP) >= 0 and library() is not None


def exists(name: str) -> bool:
    """Return whether this architecture has the system call. libseccomp returns a negative number for an unknown one."""
    seccomp = library()
    try:
        return int(seccomp.resolve_syscall(seccomp.system_arch(), name)) >= 0
    except ValueError:
        return False


def install_filter() -> None:
    """Install the filter for the calling thread and its descendants. Must be called before other threads start.

    A call through the interface of another architecture, such as x32, kills the process.
    """
    seccomp = library()
    # ENOSYS instead of EPERM, so that C libraries fall back to older calls. In particular, they replace `clone3`, whose
    # flags a filter cannot read, with `clone`.
    denied = seccomp.ERRNO(errno.ENOSYS)
    calls = seccomp.SyscallFilter(seccomp.ALLOW)
    calls.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    for name in filter(exists, DENIED):
        calls.add_rule(denied, name)
    # Allow new threads, but not new processes and namespaces.
    calls.add_rule(denied, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_THREAD, 0))
    # Denied only for other processes: `abort` signals its own process, and the C library reads its own limits with
    # PID 0.
    calls.add_rule(denied, "tgkill", seccomp.Arg(0, seccomp.NE, os.getpid()))
    calls.add_rule(denied, "prlimit64", seccomp.Arg(0, seccomp.NE, 0))
    calls.load()
