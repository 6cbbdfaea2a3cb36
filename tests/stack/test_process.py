import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from config.dev.stack import ports, process_tree
from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.process import Process, StackError
from tests.waiting import wait_until


def shell(tmp_path: Path, script: str, *, grace_seconds: float = 10) -> Process:
    return Process(
        name="tiny", command=["bash", "-c", script], log=tmp_path / "tiny.log", environment=os.environ,
        grace_seconds=grace_seconds,
    )  # fmt: skip


def test_a_failure_reports_the_name_status_and_last_lines(tmp_path: Path) -> None:
    tiny = shell(tmp_path, "seq 1 50; echo no such disk; exit 3")
    with pytest.raises(StackError) as failure:
        tiny.run_to_completion()
    lines = str(failure.value).splitlines()
    assert lines[0].startswith("tiny exited with status 3")
    assert lines[-1].strip() == "no such disk"
    assert len(lines) == 21


def test_an_external_kill_is_reported_with_its_signal(tmp_path: Path) -> None:
    tiny = shell(tmp_path, "kill -9 $$")
    tiny.start()
    with pytest.raises(StackError, match="tiny was killed by SIGKILL"):
        tiny.wait_until(lambda: False)


def test_a_process_that_ignores_the_signal_is_killed_with_its_descendants(tmp_path: Path) -> None:
    tiny = shell(tmp_path, "trap '' TERM; setsid sleep 100 & echo up; wait; sleep 100", grace_seconds=0.3)
    tiny.start()
    tiny.wait_until(lambda: "up" in tiny.tail() and len(process_tree.members(tiny.pid)) > 1)
    pids = process_tree.members(tiny.pid)
    tiny.stop()
    assert not any(map(process_tree.exists, pids))


@pytest.mark.parametrize("_once_more", range(5))
def test_a_process_that_keeps_forking_is_killed_with_all_children(tmp_path: Path, _once_more: int) -> None:
    tiny = shell(tmp_path, "for _ in $(seq 300); do sleep 100 & sleep 0.001; done; wait")
    tiny.start()
    tiny.wait_until(lambda: len(process_tree.members(tiny.pid)) > 5)
    tiny.kill()
    assert process_tree.orphans(tiny.pid) == []


@pytest.mark.slow
def test_kill_9_of_the_supervisor_leaves_nothing_behind(tmp_path: Path) -> None:
    script = f"""
        import os, time
        from pathlib import Path
        from config.dev.stack.orphan_watchdog import watchdog
        from config.dev.stack.process import Process
        command = ["bash", "-c", "trap '' TERM; setsid sleep 100 & sleep 100"]
        tiny = Process(name="tiny", command=command, log=Path({str(tmp_path / "tiny.log")!r}), environment=os.environ)
        tiny.start()
        Path({str(tmp_path / "left.sock")!r}).touch()
        watchdog().send("remove", {str(tmp_path / "left.sock")!r})
        print("up", flush=True)
        time.sleep(100)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=PROJECT, stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"up\n"
        wait_until(lambda: len(process_tree.members(supervisor.pid)) == 5)  # itself, the watchdog, bash, and two sleeps
        pids = process_tree.members(supervisor.pid)
        supervisor.kill()
    assert process_tree.wait_gone(pids, limit=process_tree.GRACE_SECONDS + 3)
    assert not (tmp_path / "left.sock").exists()


def test_free_ports_differ_and_are_free() -> None:
    found = ports.free(30)
    assert len(set(found)) == 30
    assert all(map(ports.is_free, found))
