"""The sandbox of the reader process (ADR 13). It drops all rights that parsing does not need.

Each step is best effort, because kernels, containers, and users differ in what they support. The steps apply to the
calling thread, so they must run before other threads start.
"""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

# Private memory. The worker's limit is lower; this only stops a single huge allocation.
MEMORY = 2 * 1024**3
# Audit events that only occur if the process is compromised.
FORBIDDEN = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "ftplib.", "urllib.")

OURS = Path(__file__).resolve().parents[2]
PACKAGES = tuple(path for path in sys.path if path and Path(path).is_dir())
# Python and Sluice's packages are added. All other files are inaccessible, such as homes and /proc.
READABLE = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/fonts", "/dev/null", "/dev/urandom",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/sys/vm", "/sys/devices/system",
)  # fmt: skip
# An unused user id. Not `nobody`, because other programs run as it, such as the local stack's Postgres.
STRANGER = 65533

# ---- The kernel's numbers -------------------------------------------------------------------------------------------
PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 8, 38
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SETGID, CAP_SETUID = 1, 2, 5, 6, 7
CAPABILITY_VERSION_3 = 0x20080522
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_VERSION = LANDLOCK_PATH_BENEATH = 1
# By version: the size of the ruleset attribute in bytes, and the number of file rights.
LANDLOCK_SIZES = ((8, 13), (8, 14), (8, 15), (16, 15), (16, 16), (24, 16))
READ_FILE, READ_DIR = 1 << 2, 1 << 3


def confine() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker handles Ctrl-C, and ends this process
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        leave_network(libc)
        leave_user(libc)
        leave_files(libc)
    limit()
    sys.addaudithook(forbid)


def leave_network(libc: ctypes.CDLL) -> None:
    """Enter an empty network namespace. Without root, this needs a user namespace, which also denies access to other
    processes."""
    libc.unshare(CLONE_NEWNET | (CLONE_NEWUSER if os.geteuid() else 0))


def leave_user(libc: ctypes.CDLL) -> None:
    """Drop root, and all capabilities except the one that may be needed to read Python's files."""
    had = capabilities()
    needed = 1 << CAP_SETUID | 1 << CAP_SETGID | 1 << CAP_KILL  # CAP_KILL: the worker must be able to kill this process
    if os.getuid() == 0 and had & needed == needed:
        libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        with suppress(OSError):  # a user namespace may not map this user
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
    reach = next((1 << cap for cap in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if had >> cap & 1), 0)
    keep(libc, 0 if python_is_open() else reach)


def capabilities() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["CapPrm"], 16)


def python_is_open() -> bool:
    """Return whether the current user can read all importable packages without a capability."""
    return all(os.access(path, os.R_OK | os.X_OK) for path in (sys.prefix, sys.base_prefix, *PACKAGES, str(OURS)))


def keep(libc: ctypes.CDLL, bits: int) -> None:
    """Drop all capabilities except these."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # Effective, permitted, and inheritable, each as a low and a high half.
    libc.capset(header, (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0))


# ---- Files ----------------------------------------------------------------------------------------------------------
def leave_files(libc: ctypes.CDLL) -> None:
    """Deny all file access by Landlock, except reading Python and its libraries.

    Landlock also denies signals to other processes, and TCP.
    """
    version = landlock(libc)
    if version < 1:
        return
    size, rights = LANDLOCK_SIZES[min(version, len(LANDLOCK_SIZES)) - 1]
    handled = (ctypes.c_uint64 * 3)(
        (1 << rights) - 1, 0b11, 0b11
    )  # rights of files, of TCP, and scopes of signals and abstract sockets
    rules = libc.syscall(LANDLOCK_CREATE_RULESET, handled, ctypes.c_size_t(size), 0)
    if rules >= 0:
        for path in (*READABLE, sys.prefix, sys.base_prefix, *libraries(), str(OURS)):
            allow(libc, rules, path)
        libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0)
        os.close(rules)


def landlock(libc: ctypes.CDLL) -> int:
    """Return the kernel's Landlock version, less than 1 if it has none."""
    return int(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION))


def hides_files() -> bool:
    """Return whether `confine` restricts file access on this system, for all users."""
    return sys.platform == "linux" and landlock(ctypes.CDLL(None)) >= 1


def libraries() -> list[str]:
    """Return the paths of Python and the linker, without the project's folder, which may contain secrets."""
    found = [*sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return [path for path in found if path and Path(path).resolve() != OURS.parent]


def allow(libc: ctypes.CDLL, rules: int, path: str) -> None:
    with suppress(OSError):
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = READ_FILE | READ_DIR if Path(path).is_dir() else READ_FILE
        rule = rights.to_bytes(8, sys.byteorder) + found.to_bytes(4, sys.byteorder)
        libc.syscall(LANDLOCK_ADD_RULE, rules, LANDLOCK_PATH_BENEATH, rule, 0)
        os.close(found)


# ---- Bounds ---------------------------------------------------------------------------------------------------------
def limit() -> None:
    for bound, most in (
        (resource.RLIMIT_DATA, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 128),
    ):
        # Some systems lack some limits, and an operator's limits may be tighter.
        with suppress(ValueError, OSError):
            resource.setrlimit(bound, (most, most))


def forbid(event: str, _args: tuple[Any, ...]) -> None:
    if event.startswith(FORBIDDEN):
        raise PermissionError(event)
