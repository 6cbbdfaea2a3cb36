"""Denied system calls of a compromised reader process (B12, B13).

The calls are made directly, as native code does, so that Python's audit hook is not involved.
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

Call = tuple[str, tuple[object, ...]]


def results(calls: list[Call]) -> list[str]:
    """Make system calls in a confined process. Return the name of the error of each, or "0" if it succeeds."""
    listed = "".join(f"({name!r}, [{', '.join(map(str, arguments))}])," for name, arguments in calls)
    code = f"""
import ctypes, errno, os
import pyseccomp
from etl.providers.local import sandbox
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(4096)
parent = os.getpid()
calls = [(pyseccomp.resolve_syscall(pyseccomp.system_arch(), name), given) for name, given in [{listed}]]
sandbox.confine()
sandbox.confine_further()
for number, given in calls:
    result = libc.syscall(number, *[each if each is buffer else ctypes.c_long(each) for each in given])
    error = ctypes.get_errno()
    if os.getpid() != parent:
        os._exit(0)
    os.write(1, (errno.errorcode[error] if result < 0 else "0").encode() + b"\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


def test_denied_calls_do_not_reach_the_kernel() -> None:
    """The kernel supports these calls. With these arguments, they would succeed or return another error."""
    found = results([(name, (-1, 0, 0, 0, 0, 0)) for name in NAMES])
    assert dict(zip(NAMES, found, strict=True)) == dict.fromkeys(NAMES, "ENOSYS")


def test_calls_that_a_compromised_parser_would_use_are_denied() -> None:
    calls: list[Call] = [
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
    ]
    existing = [each for each in calls if system_calls.exists(each[0])]  # on this architecture
    assert len(existing) > len(calls) / 2
    assert [*zip(existing, results(existing), strict=True)] == [(each, "ENOSYS") for each in existing]


def test_calls_about_the_process_itself_work() -> None:
    """`abort` needs them, and so does reading resource limits."""
    calls: list[Call] = [
        ("tgkill", ("os.getpid()", "os.getpid()", 0)), ("prlimit64", (0, 7, 0, "buffer")), ("getpid", (0,))
    ]  # fmt: skip
    assert results(calls) == ["0"] * 3


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
    """x32 has other numbers for the calls: there, `socket` is 0x40000029."""
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


def test_the_sandbox_reports_unsupported_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls, "library", lambda: None)
    monkeypatch.setattr(sandbox, "LANDLOCK_CREATE_RULESET", 100_000)
    assert sandbox.missing() == ["landlock", "seccomp"]
