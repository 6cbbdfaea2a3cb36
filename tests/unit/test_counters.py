"""The counter files of processes. Live processes never share a file, and no count is lost. A27."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config.platform.observability import counters, exposition
from config.platform.observability.counters import ProcessNumber

# Counts an event in the process and in each fork. Each of them prints a line and runs until it gets a signal.
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


def test_forked_processes_have_separate_counters(folder: Path) -> None:
    process = start(forks=2)

    assert counted() == 3
    assert files(folder) == ["counter_0.db", "counter_1.db", "counter_2.db"]
    end(process)


@pytest.mark.slow
def test_restarted_processes_keep_counts_and_reuse_files(folder: Path) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        end(start(forks=1), how)

    assert counted() == 6
    assert files(folder) == ["counter_0.db", "counter_1.db"]


def test_a_process_does_not_take_the_number_of_a_live_process(folder: Path) -> None:
    """Numbers are assigned by file locks and not by process IDs, which repeat across containers.

    Even within one process, two objects get two numbers.
    """
    first, second = ProcessNumber(folder), ProcessNumber(folder)

    assert (first(), second(), first(), second()) == (0, 1, 0, 1)


def test_an_empty_file_that_another_process_has_just_created_is_accepted(folder: Path) -> None:
    end(start())
    (folder / "counter_7.db").touch()

    assert counted() == 1


def test_it_creates_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(counters.VARIABLE, str(folder / "a" / "b"))
    end(start())

    assert counted() == 1
