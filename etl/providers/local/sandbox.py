"""Sandbox of the reader process (ADR 13). Drops all permissions that parsing does not need.

`confine` applies to the reader process, and `confine_further` to the process that it forks for a document. Each step is
best effort, because kernels, containers, and users differ in their support. The steps apply to the calling thread, so
they must run before other threads start.
"""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from etl.providers.local import system_calls

# Private memory in bytes. The worker kills the process at a lower limit; this only stops a single huge allocation.
MAX_PRIVATE_MEMORY = 2 * 1024**3
MAX_OPEN_FILES = 128
# Prefixes of audit events that only occur if the process is compromised.
DENIED_EVENTS = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "ftplib.", "urllib.")

PACKAGE = Path(__file__).resolve().parents[2]
IMPORT_PATHS = tuple(path for path in sys.path if path and Path(path).is_dir())
# Readable paths, besides Python and the package `etl`. Other paths are inaccessible, such as /home and most of /proc.
READABLE = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/fonts", "/dev/null", "/dev/urandom",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/sys/vm", "/sys/devices/system",
)  # fmt: skip
# A user ID that no other program uses. The unprivileged user of the system runs others, such as the local Postgres.
SANDBOX_UID = 65533

# ---- Linux constants ------------------------------------------------------------------------------------------------
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 8, 36, 38
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SETGID, CAP_SETUID = 1, 2, 5, 6, 7
CAPABILITY_VERSION_3 = 0x20080522
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_VERSION = LANDLOCK_PATH_BENEATH = 1
# By version: the size of the ruleset attribute in bytes, and the number of file rights.
LANDLOCK_SIZES = ((8, 13), (8, 14), (8, 15), (16, 15), (16, 16), (24, 16))
READ_FILE, READ_DIR = 1 << 2, 1 << 3


def confine() -> None:
    """Drop the permissions of this process, except to fork. It cannot regain them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker handles Ctrl+C and kills this process
    system_calls.library()  # loaded while its files can still be searched
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        deny_network(libc)
        drop_privileges(libc)
        deny_files(libc)
        # A document's process may not trace this one, and orphans become children of this one.
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    set_resource_limits()


def confine_further() -> None:
    """Deny the system calls that parsing does not need, such as fork. Requires `confine`."""
    if system_calls.can_deny():
        system_calls.install_filter()
    sys.addaudithook(deny_event)


def missing() -> list[str]:
    """Return the parts of the sandbox that this system does not support."""
    return [
        *([] if can_deny_files() else ["landlock"]),
        *([] if system_calls.can_deny() else ["seccomp"]),
    ]


def deny_network(libc: ctypes.CDLL) -> None:
    """Enter an empty network namespace.

    Without root, this requires a user namespace, which also denies access to other processes.
    """
    libc.unshare(CLONE_NEWNET | (CLONE_NEWUSER if os.geteuid() else 0))


def drop_privileges(libc: ctypes.CDLL) -> None:
    """Switch from root to an unused user, and drop all capabilities.

    Keeps one capability to read files if that user could not read Python.
    """
    permitted = permitted_capabilities()
    # Without CAP_KILL, the worker could not kill a process of another user.
    required = 1 << CAP_SETUID | 1 << CAP_SETGID | 1 << CAP_KILL
    if os.getuid() == 0 and permitted & required == required:
        libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        with suppress(OSError):  # a user namespace may not map this user
            os.setgroups([])
            os.setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
            os.setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    read_files = next((1 << cap for cap in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if permitted >> cap & 1), 0)
    set_capabilities(libc, 0 if can_read_python() else read_files)


def permitted_capabilities() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["CapPrm"], 16)


def can_read_python() -> bool:
    """Return whether the current user can read all importable packages without capabilities."""
    return all(
        os.access(path, os.R_OK | os.X_OK) for path in (sys.prefix, sys.base_prefix, *IMPORT_PATHS, str(PACKAGE))
    )


def set_capabilities(libc: ctypes.CDLL, bits: int) -> None:
    """Drop all capabilities except those in a bit mask."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # Effective, permitted, and inheritable capabilities: first the low 32 bits of each, then the high 32 bits.
    libc.capset(header, (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0))


# ---- Files ----------------------------------------------------------------------------------------------------------
def deny_files(libc: ctypes.CDLL) -> None:
    """Use Landlock to deny all file access, except reading Python and its libraries.

    Newer versions of Landlock also deny TCP, and signals to other processes.
    """
    version = landlock_version(libc)
    if version < 1:
        return
    size, rights = LANDLOCK_SIZES[min(version, len(LANDLOCK_SIZES)) - 1]
    # Bit masks of file access rights, TCP access rights, and scopes (signals and abstract sockets).
    handled = (ctypes.c_uint64 * 3)((1 << rights) - 1, 0b11, 0b11)
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, handled, ctypes.c_size_t(size), 0)
    if ruleset >= 0:
        for path in (*READABLE, sys.prefix, sys.base_prefix, *library_paths(), str(PACKAGE)):
            allow_reading(libc, ruleset, path)
        libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def landlock_version(libc: ctypes.CDLL) -> int:
    """Return the kernel's Landlock version, or a value below 1 without Landlock."""
    return int(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION))


def can_deny_files() -> bool:
    """Return whether `confine` can restrict file access on this system. It does not depend on the user."""
    return sys.platform == "linux" and landlock_version(ctypes.CDLL(None)) >= 1


def library_paths() -> list[str]:
    """Return the search paths of Python and the dynamic linker, without the project folder, which may have secrets."""
    paths = [*sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return [path for path in paths if path and Path(path).resolve() != PACKAGE.parent]


def allow_reading(libc: ctypes.CDLL, ruleset: int, path: str) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = READ_FILE | READ_DIR if Path(path).is_dir() else READ_FILE
        rule = rights.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        libc.syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_PATH_BENEATH, rule, 0)
        os.close(descriptor)


# ---- Limits ---------------------------------------------------------------------------------------------------------
def set_resource_limits() -> None:
    for kind, limit in (
        (resource.RLIMIT_DATA, MAX_PRIVATE_MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
    ):
        # A system may not support a limit, and an operator may have set a lower one.
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


def limit_processor_time(seconds: int) -> None:
    """Have the kernel kill this process (SIGXCPU) after this processor time in seconds, summed over all threads."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def deny_event(event: str, _args: tuple[Any, ...]) -> None:
    if event.startswith(DENIED_EVENTS):
        raise PermissionError(event)
