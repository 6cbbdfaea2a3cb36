"""The counter files of processes: no two live processes share one, and no count is lost. A27."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config.platform.observability import counters, exposition
from config.platform.observability.counters import ProcessNumber

# Counts in this process and in forks of it, then prints a line and runs until SIGTERM.
COUNT = r"""
import os, sys
from config.platform.observability import counters
counters.configure()
from prometheus_client import Counter
events = Counter("sluice_test_events", "Events.")
events.inc()
for _ in range(int(sys.argv[1])):
    if not os.fork():
        events.inc()
        break
os.write(1, b"counted\n")
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(counters.VARIABLE, str(tmp_path))
    return tmp_path


def start(*, forks: int = 0) -> subprocess.Popen[bytes]:
    """Start a process that counts one event in itself and in each fork."""
    process = subprocess.Popen(
        [sys.executable, "-c", COUNT, str(forks)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout
    for _ in range(forks + 1):
        assert process.stdout.readline() == b"counted\n"
    return process


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    os.killpg(process.pid, how)
    process.communicate()


def counted() -> float:
    (line,) = (line for line in exposition.counted().splitlines() if line.startswith(b"sluice_test_events_total "))
    return float(line.split()[1])


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("counter_*.db"))


def test_forked_processes_have_counters_of_their_own(folder: Path) -> None:
    process = start(forks=2)

    assert counted() == 3
    assert files(folder) == ["counter_0.db", "counter_1.db", "counter_2.db"]
    end(process)


def test_restarted_processes_keep_counts_and_reuse_files(folder: Path) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        end(start(forks=1), how)

    assert counted() == 6
    assert files(folder) == ["counter_0.db", "counter_1.db"]


def test_a_process_does_not_take_the_number_of_a_live_process(folder: Path) -> None:
    """Process IDs repeat across containers, so the lock decides: even one process gets two numbers."""
    first, second = ProcessNumber(folder), ProcessNumber(folder)

    assert (first(), second(), first(), second()) == (0, 1, 0, 1)


def test_a_file_that_another_process_just_created_is_accepted(folder: Path) -> None:
    end(start())
    (folder / "counter_7.db").touch()

    assert counted() == 1


def test_it_creates_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(counters.VARIABLE, str(folder / "a" / "b"))
    end(start())

    assert counted() == 1
