"""System calls of a compromised document process: all that parsing does not need fail (B12, B13).

The calls are made directly, as native code does, so that Python's audit hook has no part in it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from etl.providers.local import sandbox, system_calls

PROJECT = Path(__file__).parents[2]
CLONE_NEWUSER, SIGCHLD = 0x10000000, 17
# Architectures have different calls: arm64 has no `fork`, for example.
NAMES = [name for name in system_calls.DENIED if not system_calls.can_deny() or system_calls.exists(name)]
AF_UNIX, AF_NETLINK, AF_VSOCK = 1, 16, 40

pytestmark = pytest.mark.skipif(not system_calls.can_deny(), reason="no libseccomp, or a kernel without seccomp")


def call(name: str, *arguments: object) -> str:
    """Make a system call in a confined process, and return the name of its error, or "" if it succeeds."""
    code = f"""
import ctypes, errno, os
import pyseccomp
from etl.providers.local import sandbox
number = pyseccomp.resolve_syscall(pyseccomp.system_arch(), {name!r})
libc = ctypes.CDLL(None, use_errno=True)
sandbox.confine()
sandbox.confine_further()
buffer, path = ctypes.create_string_buffer(4096), ctypes.c_char_p(b"/")
parent = os.getpid()
result = libc.syscall(number, *[each if isinstance(each, (ctypes.c_char_p, ctypes.Array)) else ctypes.c_long(each)
                                for each in ({", ".join(map(str, arguments))},)])
error = ctypes.get_errno()
if os.getpid() != parent:
    os._exit(0)
os.write(1, errno.errorcode[error].encode() if result < 0 else b"")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_denied_call_does_not_reach_the_kernel(name: str) -> None:
    """The kernel has all of this architecture, and would return another error for these arguments, or succeed."""
    assert call(name, -1, 0, 0, 0, 0, 0) == "ENOSYS"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("socket", (AF_UNIX, 1, 0)),
        ("socket", (AF_NETLINK, 3, 0)),
        ("socket", (AF_VSOCK, 1, 0)),
        ("socketpair", (AF_UNIX, 1, 0, "buffer")),
        ("unshare", (CLONE_NEWUSER,)),
        ("io_uring_setup", (1, "buffer")),
        ("clone", (SIGCHLD, 0, 0, 0, 0)),
        ("clone", (CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)),
        ("clone3", ("buffer", 64)),
        ("kill", ("os.getpid()", 0)),
        ("tgkill", ("os.getppid()", "os.getppid()", 0)),
        ("ptrace", (0, 0, 0, 0)),
        ("shmget", (0, 4096, 0o600)),
        ("prlimit64", ("os.getppid()", 7, 0, "buffer")),
    ],
    ids=str,
)
def test_calls_that_a_compromised_parser_would_use_are_denied(name: str, arguments: tuple[object, ...]) -> None:
    if not system_calls.exists(name):
        pytest.skip("not a system call of this architecture")
    assert call(name, *arguments) == "ENOSYS"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("tgkill", ("os.getpid()", "os.getpid()", 0)), ("prlimit64", (0, 7, 0, "buffer")), ("getpid", (0,))],
    ids=str,
)
def test_calls_about_the_process_itself_work(name: str, arguments: tuple[object, ...]) -> None:
    """`abort` uses them, and reading a limit does."""
    assert call(name, *arguments) == ""


def test_threads_can_be_started() -> None:
    code = """
import threading
from etl.providers.local import sandbox
sandbox.confine()
sandbox.confine_further()
thread = threading.Thread(target=print, args=("started",))
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == "started\n"


def test_calls_of_another_architecture_kill_the_process() -> None:
    """x32 numbers the calls differently: without this, `socket` would be 0x40000029."""
    if not system_calls.exists("arch_prctl"):
        pytest.skip("only x86-64 has a second table of system calls")
    code = """
import ctypes
from etl.providers.local import sandbox
sandbox.confine()
sandbox.confine_further()
ctypes.CDLL(None).syscall(0x40000029, 1, 1, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, check=False)
    assert done.returncode == -31  # SIGSYS


def test_the_sandbox_reports_what_the_system_does_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls, "library", lambda: None)
    monkeypatch.setattr(sandbox, "LANDLOCK_CREATE_RULESET", 100_000)
    assert sandbox.missing() == ["landlock", "seccomp"]
