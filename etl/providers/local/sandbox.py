"""Takes from the process that reads documents what parsing does not need, before it has seen one. ADR 13.

Each step is done as far as the system allows it: kernels, containers and users differ in what they may give up. All of
them concern the calling thread, so this comes before anything that starts threads.
"""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

# Private memory, of which the worker allows less. This only stops one allocation that would be too much at once.
MEMORY = 2 * 1024**3
# What only a program that was taken over would do here.
FORBIDDEN = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "ftplib.", "urllib.")

OURS = Path(__file__).resolve().parents[2]
PACKAGES = tuple(path for path in sys.path if path and Path(path).is_dir())
# Python and our own packages are added; and nothing else, neither homes nor /proc, can be opened.
READABLE = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/fonts", "/dev/null", "/dev/urandom",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/sys/vm", "/sys/devices/system",
)  # fmt: skip
# A user that nobody is. Not `nobody`: others run as that, such as the local stack's Postgres.
STRANGER = 65533

# ---- The kernel's numbers -------------------------------------------------------------------------------------------
PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 8, 38
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SETGID, CAP_SETUID = 1, 2, 5, 6, 7
CAPABILITY_VERSION_3 = 0x20080522
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_VERSION = LANDLOCK_PATH_BENEATH = 1
# For each version, how many bytes say what is to be refused, and how many rights concern files.
LANDLOCK_SIZES = ((8, 13), (8, 14), (8, 15), (16, 15), (16, 16), (24, 16))
READ_FILE, READ_DIR = 1 << 2, 1 << 3


def confine() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which ends us
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        leave_network(libc)
        leave_user(libc)
        leave_files(libc)
    limit()
    sys.addaudithook(forbid)


def leave_network(libc: ctypes.CDLL) -> None:
    """Go where there is no network: as root, or with a namespace of users of our own, which also keeps us from looking
    into others' processes."""
    libc.unshare(CLONE_NEWNET | (CLONE_NEWUSER if os.geteuid() else 0))


def leave_user(libc: ctypes.CDLL) -> None:
    """Stop being root if we are, and keep of its capabilities at most the one to read the files of Python."""
    had = capabilities()
    needed = 1 << CAP_SETUID | 1 << CAP_SETGID | 1 << CAP_KILL  # the last is what a worker ends us with
    if os.getuid() == 0 and had & needed == needed:
        libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        with suppress(OSError):  # a namespace without such a user
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
    reach = next((1 << cap for cap in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if had >> cap & 1), 0)
    keep(libc, 0 if python_is_open() else reach)


def capabilities() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["CapPrm"], 16)


def python_is_open() -> bool:
    """Whether what is yet to be imported can be read by the user that we are, without any capability."""
    return all(os.access(path, os.R_OK | os.X_OK) for path in (sys.prefix, sys.base_prefix, *PACKAGES, str(OURS)))


def keep(libc: ctypes.CDLL, bits: int) -> None:
    """Give up all capabilities but these."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # Effective, permitted and inheritable, each in a low and a high half.
    libc.capset(header, (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0))


# ---- Files ----------------------------------------------------------------------------------------------------------
def leave_files(libc: ctypes.CDLL) -> None:
    """Have the kernel refuse to open, make, change, delete or execute any file, but to read those that we are made of.

    It is Landlock, which also keeps us from other processes, by signals too, and from TCP.
    """
    version = landlock(libc)
    if version < 1:
        return
    size, rights = LANDLOCK_SIZES[min(version, len(LANDLOCK_SIZES)) - 1]
    handled = (ctypes.c_uint64 * 3)((1 << rights) - 1, 0b11, 0b11)  # of files, of TCP, of signals and named sockets
    rules = libc.syscall(LANDLOCK_CREATE_RULESET, handled, ctypes.c_size_t(size), 0)
    if rules >= 0:
        for path in (*READABLE, sys.prefix, sys.base_prefix, *libraries(), str(OURS)):
            allow(libc, rules, path)
        libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0)
        os.close(rules)


def landlock(libc: ctypes.CDLL) -> int:
    """Return the version of Landlock that the kernel has; less than 1 is none."""
    return int(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION))


def hides_files() -> bool:
    """Whether a process that `confine` is called in can open no file that it is not made of, whoever it runs as."""
    return sys.platform == "linux" and landlock(ctypes.CDLL(None)) >= 1


def libraries() -> list[str]:
    """Return where Python and the linker look, without the project's own folder: an operator's secrets may be there."""
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
        # Not every system has each, and an operator's own bounds may be tighter.
        with suppress(ValueError, OSError):
            resource.setrlimit(bound, (most, most))


def forbid(event: str, _args: tuple[Any, ...]) -> None:
    if event.startswith(FORBIDDEN):
        raise PermissionError(event)
