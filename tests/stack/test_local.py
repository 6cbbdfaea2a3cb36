"""The whole stack as `make up` starts it, in a folder of the test's own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config.stack import family, processes
from config.stack.lifeline import PROJECT
from tests.stack.conftest import listening, temporary_sockets

UP = [sys.executable, "-m", "config.stack", "up", "--workers", "1", "--root"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all of them, in any order: the second start also shows that a used folder works."""
    return tmp_path_factory.mktemp("local")


def test_it_comes_up_once_says_what_has_died_and_stops(root: Path) -> None:
    with up(root) as stack:
        pids = family.members(stack.pid)
        variables = dict(line.split("=", 1) for line in (root / "stack.env").read_text().splitlines())
        assert processes.answers(int(variables["BASE_URL"].rpartition(":")[2]))
        assert variables["EXPORT_LEASE_SECONDS"] == "7", "what the shell sets is told to the next shell"
        assert set(listening(pids)) == {"0100007F"}
        names = [name for pid in pids if "celery" in (name := command(pid))]
        assert [name for name in names if " worker -Q exports " in name]
        assert [name for name in names if " worker -Q maintenance " in name]

        second = subprocess.run([*UP, str(root)], check=False, cwd=PROJECT, capture_output=True, text=True, timeout=30)
        assert second.returncode == 1
        assert "runs already in this folder" in second.stderr

        beat = next(pid for pid in pids if " beat " in command(pid))
        os.kill(beat, signal.SIGKILL)
        output = stack.communicate(timeout=40)[0]
    assert stack.returncode == 1
    assert "beat was ended by SIGKILL" in output
    assert_nothing_is_left(pids, root)


def test_kill_9_of_the_supervisor_stops_everything(root: Path) -> None:
    with up(root) as stack:
        pids = family.members(stack.pid)
        stack.kill()
    assert_nothing_is_left(pids, root)


def test_ctrl_c_stops_everything_and_is_no_failure(root: Path) -> None:
    with up(root) as stack:
        pids = family.members(stack.pid)
        stack.send_signal(signal.SIGINT)
        assert stack.wait(timeout=40) == 0
    assert_nothing_is_left(pids, root)


@contextmanager
def up(root: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*UP, str(root)], cwd=PROJECT, env={**os.environ, "EXPORT_LEASE_SECONDS": "7"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as stack:  # fmt: skip
        try:
            wait_for(root / "stack.env", stack)
            yield stack
        finally:
            stack.kill()


def wait_for(file: Path, stack: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 40
    while not file.exists():
        if stack.poll() is not None:
            pytest.fail(stack.communicate()[0])
        assert time.monotonic() < deadline, "it did not come up"
        time.sleep(0.05)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except FileNotFoundError:
        return ""


def assert_nothing_is_left(pids: list[int], root: Path) -> None:
    assert family.wait_gone(pids, limit=10), [command(pid) for pid in pids if family.exists(pid)]
    assert not temporary_sockets(root)
    assert not (root / "stack.env").exists(), "it tells of a stack that runs"
