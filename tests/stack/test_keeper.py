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
from config.dev.stack.restarter import Keeper


@contextmanager
def kept(tmp_path: Path, script: str) -> Iterator[tuple[Keeper, list[str]]]:
    """Give a keeper of a shell that runs, and the lines that it tells."""
    log, lines = tmp_path / "tiny.log", []  # type: tuple[Path, list[str]]
    tiny = Process(name="tiny", command=["bash", "-c", script], log=log, environment=os.environ)
    tiny.start()
    try:
        yield Keeper(tiny, lines.append), lines
    finally:
        tiny.kill()


def look_until(keeper: Keeper, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        keeper.look()
        assert time.monotonic() < deadline, "looked in vain"
        time.sleep(0.01)


def runs_as_another(keeper: Keeper, than: int) -> bool:
    return keeper.process.pid != than


@pytest.mark.slow
def test_it_gives_up_on_one_that_ends_by_itself_again_and_again(tmp_path: Path) -> None:
    end = r"tiny ended 5 times within 60 s.*\n.*exit status 3.*\n.*no such disk"
    with kept(tmp_path, "echo no such disk; exit 3") as (keeper, lines), pytest.raises(StackError, match=end):
        look_until(keeper, lambda: False)
    assert lines == ["tiny ended with exit status 3; it is started again."] * 4


def test_it_never_gives_up_on_one_that_is_killed(tmp_path: Path) -> None:
    with kept(tmp_path, "exec sleep 100") as (keeper, lines):
        for _ in range(8):
            before = keeper.process.pid
            os.kill(before, signal.SIGKILL)
            look_until(keeper, partial(runs_as_another, keeper, before))
        assert keeper.process.alive
    assert lines == ["tiny was ended by SIGKILL; it is started again."] * 8


def test_it_ends_what_a_killed_one_left_behind_before_it_starts_another(tmp_path: Path) -> None:
    with kept(tmp_path, "trap '' HUP; sleep 100 & wait") as (keeper, _):
        before = keeper.process.pid
        look_until(keeper, lambda: len(process_tree.members(before)) == 2)
        child = process_tree.members(before)[1]
        os.kill(before, signal.SIGKILL)
        assert process_tree.wait_gone([before], limit=5)
        assert process_tree.exists(child)
        look_until(keeper, partial(runs_as_another, keeper, before))
        assert not process_tree.exists(child)


def test_it_leaves_one_alone_that_is_stopped_but_alive(tmp_path: Path) -> None:
    with kept(tmp_path, "exec sleep 100") as (keeper, lines):
        os.kill(keeper.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, keeper.process.pid, os.WSTOPPED | os.WNOWAIT)
        keeper.look()
        assert keeper.process.alive
    assert not lines
