"""Tests of the complete local stack, as `make up` starts it, but in a temporary folder."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config.dev.stack import process_tree, processes
from config.dev.stack.orphan_watchdog import PROJECT
from tests.stack.conftest import is_served, listening, temporary_sockets
from tests.waiting import wait_until

UP = [sys.executable, "-m", "config.dev.stack", "up", "--workers", "1", "--root"]
EXPORTS, WEB = " worker -Q exports ", " uvicorn "
SERVERS = ("/postgres -D ", "valkey", "/weed ")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # each test starts and stops a whole stack


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for all tests, so that every test but the first starts in a used folder."""
    return tmp_path_factory.mktemp("local")


def test_it_starts_once_restarts_killed_processes_and_ctrl_c_stops_everything(root: Path) -> None:
    with up(root) as stack:
        port, pids = web_port(root), process_tree.members(stack.pid)
        assert processes.responds(port)
        assert variables_of(root)["EXPORT_LEASE_SECONDS"] == "7", "variables of the shell are in the file"
        assert set(listening(pids)) == {"0100007F"}
        for name in processes.WORKERS:
            assert find(stack, f" worker -Q {name} ")

        second = subprocess.run([*UP, str(root)], check=False, cwd=PROJECT, capture_output=True, text=True, timeout=240)
        assert second.returncode == 1
        assert "already runs in this folder" in second.stderr

        worker = find(stack, EXPORTS)
        wait_until(lambda: len(process_tree.members(worker)) > 1)
        family = process_tree.members(worker)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: is_replaced(stack, EXPORTS, than=worker), always=lambda: processes.responds(port))
        assert process_tree.wait_gone(family, limit=5), "its children were not killed"

        web = find(stack, WEB)
        os.kill(web, signal.SIGKILL)
        assert process_tree.wait_gone([web], limit=5)
        wait_until(lambda: is_replaced(stack, WEB, than=web) and processes.responds(port))

        servers = {words: find(stack, words) for words in SERVERS}
        for pid in servers.values():
            os.kill(pid, signal.SIGKILL)
        assert process_tree.wait_gone([*servers.values()], limit=5)
        wait_until(lambda: all(is_replaced(stack, words, than=pid) for words, pid in servers.items()))
        wait_until(lambda: processes.responds(port, "/readyz"))

        pids.extend(process_tree.members(stack.pid))
        stack.send_signal(signal.SIGINT)
        output = stack.communicate(timeout=240)[0]
    assert stack.returncode == 0
    for name in ("exports", "web", "postgres", "valkey", "seaweedfs"):
        assert output.count(f"{name} was killed by SIGKILL. Restarting it.") == 1, output
    assert_nothing_is_left(pids, root)


def test_a_process_that_cannot_start_stops_the_stack_and_prints_its_log(root: Path) -> None:
    with up(root) as stack:
        pids, beat = process_tree.members(stack.pid), find(stack, " beat ")
        assert beat
        with unusable(root / "beat"):
            process_tree.send(beat, signal.SIGKILL)  # it may have exited, if it had not opened its file yet
            output = stack.communicate(timeout=240)[0]
    assert stack.returncode == 1
    assert "beat exited 5 times within 60 s" in output
    assert "Not a directory" in output
    assert_nothing_is_left(pids, root)


def test_kill_9_of_the_supervisor_stops_everything(root: Path) -> None:
    with up(root) as stack:
        pids = process_tree.members(stack.pid)
        stack.kill()
    assert_nothing_is_left(pids, root)


@contextmanager
def up(root: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*UP, str(root)], cwd=PROJECT, env={**os.environ, "EXPORT_LEASE_SECONDS": "7"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as stack:  # fmt: skip
        try:
            wait_until(lambda: (root / "stack.env").exists() or stack.poll() is not None, limit=120)
            assert stack.poll() is None, stack.communicate()[0]
            yield stack
        finally:
            stack.kill()


@contextmanager
def unusable(folder: Path) -> Iterator[None]:
    """Replace a folder with a file, so that it cannot be used."""
    shutil.rmtree(folder)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()


def variables_of(root: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (root / "stack.env").read_text().splitlines())


def web_port(root: Path) -> int:
    return int(variables_of(root)["BASE_URL"].rpartition(":")[2])


def find(stack: subprocess.Popen[str], words: str) -> int:
    """Return the ID of the process with these words in its command, or 0. Prefer a parent to its children."""
    return next((pid for pid in process_tree.members(stack.pid) if words in command(pid)), 0)


def is_replaced(stack: subprocess.Popen[str], words: str, *, than: int) -> bool:
    return find(stack, words) not in {0, than}


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except FileNotFoundError:
        return ""


def assert_nothing_is_left(pids: list[int], root: Path) -> None:
    assert process_tree.wait_gone(pids, limit=10), [command(pid) for pid in pids if process_tree.exists(pid)]
    assert not [path for path in temporary_sockets(root) if not is_served(path)]
    assert not (root / "stack.env").exists(), "the file describes a stopped stack"
