import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from config.dev.stack import process_tree
from config.dev.stack.process import Process, StackError
from config.dev.stack.restarter import Restarter


@contextmanager
def running_shell(tmp_path: Path, script: str) -> Iterator[tuple[Restarter, list[str]]]:
    """Yield the restarter of a running shell, and the lines that it reports."""
    log, lines = tmp_path / "tiny.log", []  # type: tuple[Path, list[str]]
    tiny = Process(name="tiny", command=["bash", "-c", script], log=log, environment=os.environ)
    tiny.start()
    try:
        yield Restarter(tiny, lines.append), lines
    finally:
        tiny.kill()


def check_until(restarter: Restarter, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        restarter.check()
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.01)


def runs_as_another(restarter: Restarter, than: int) -> bool:
    return restarter.process.pid != than


@pytest.mark.slow
def test_it_gives_up_on_a_process_that_exits_repeatedly(tmp_path: Path) -> None:
    end = r"tiny exited 5 times within 60 s.*\n.*exited with status 3.*\n.*no such disk"
    with (
        running_shell(tmp_path, "echo no such disk; exit 3") as (restarter, lines),
        pytest.raises(StackError, match=end),
    ):
        check_until(restarter, lambda: False)
    assert lines == ["tiny exited with status 3. Restarting it."] * 4


def test_it_never_gives_up_on_a_process_that_is_killed(tmp_path: Path) -> None:
    with running_shell(tmp_path, "exec sleep 100") as (restarter, lines):
        for _ in range(8):
            before = restarter.process.pid
            os.kill(before, signal.SIGKILL)
            check_until(restarter, partial(runs_as_another, restarter, before))
        assert restarter.process.alive
    assert lines == ["tiny was killed by SIGKILL. Restarting it."] * 8


def test_it_ends_children_of_a_killed_process_before_the_restart(tmp_path: Path) -> None:
    with running_shell(tmp_path, "trap '' HUP; sleep 100 & wait") as (restarter, _):
        before = restarter.process.pid
        check_until(restarter, lambda: len(process_tree.members(before)) == 2)
        child = process_tree.members(before)[1]
        os.kill(before, signal.SIGKILL)
        assert process_tree.wait_gone([before], limit=5)
        assert process_tree.exists(child)
        check_until(restarter, partial(runs_as_another, restarter, before))
        assert not process_tree.exists(child)


def test_it_does_not_restart_a_stopped_process(tmp_path: Path) -> None:
    with running_shell(tmp_path, "exec sleep 100") as (restarter, lines):
        os.kill(restarter.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, restarter.process.pid, os.WSTOPPED | os.WNOWAIT)
        restarter.check()
        assert restarter.process.alive
    assert not lines
