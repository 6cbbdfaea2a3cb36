"""P10: 500 listeners of one job's events, alternating with a single listener, each time on a new web process.

Bounds: a change reaches the slowest listener within 2 s of its commit, and a listener takes at most 100 kB of memory.

Each change finishes a chunk, with the workers' SQL statement, at a random offset within the web process's polling
interval of half a second. The time is measured from before the statement until the last listener has received the whole
event. The listeners run in a separate process.
"""

import json
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from statistics import median
from threading import Thread
from typing import Any

from django.contrib.auth.models import User

from config.dev.stack.ports import LOOPBACK
from config.platform.http.sse import MAX_STREAMS_PER_USER, POLL_SECONDS
from exports.models import Dataset, Job
from exports.worker import transitions
from tests.bench import site
from tests.bench.alternation import alternate
from tests.bench.report import Report
from tests.integration.factories import claim_one, pairs, result_of
from tests.waiting import let_pass

MAX_SECONDS, MAX_KILOBYTES = 2.0, 100.0
# Listeners and changes for the warm-up, in which a web process creates objects that it creates only once.
WARM_UP_LISTENERS, WARM_UP_CHANGES = 20, 2
SETTLE_SECONDS = 2.0
LIMIT_SECONDS = 120
FILES = 4096  # limit of open files per process; half of it is for streams


@dataclass
class ListenerMeasurements:
    """Measurements with a number of listeners: seconds per change, and bytes of the web process per round."""

    count: int
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.count} listener{'s' if self.count > 1 else ''}"


@dataclass(frozen=True)
class Scene:
    dataset: Dataset
    owner: User
    tokens: list[str]
    changes: int


def run(report: Report, *, rounds: int, quick: bool) -> None:
    count, changes = (50, 3) if quick else (500, 20)
    rounds = 1 if quick else rounds
    allow_files()
    owner = site.prepare()
    # Staff may open streams of other users' jobs, but the streams per user are limited. There are two more users than
    # needed, because earlier connections may still be closing.
    staff = [
        User.objects.create_user(f"staff{n}", is_staff=True, is_superuser=True)
        for n in range(-(-count // MAX_STREAMS_PER_USER) + 2)
    ]
    scene = Scene(
        dataset=site.make_dataset("listeners", "listeners.never_called"),
        owner=owner,
        tokens=[site.token_of(user) for user in staff],
        changes=changes,
    )
    one, many = ListenerMeasurements(1), ListenerMeasurements(count)
    alternatives = {each.name: partial(measure, each, scene) for each in (one, many)}
    alternate(alternatives, rounds=rounds, warm_up=False)  # each warms up its own web process
    report_results(report, one, many)


def allow_files() -> None:
    """Raise the limit of open files of this process and its children, for the streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        assert hard == resource.RLIM_INFINITY or hard >= FILES, f"no more than {hard} files may be open"
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))


# ---- Measuring ------------------------------------------------------------------------------------------------------


def measure(measurements: ListenerMeasurements, scene: Scene) -> float:
    """Connect listeners to a new web process, and make changes. Return the median seconds of a change."""
    job = site.submit(scene.dataset, pairs(WARM_UP_CHANGES + scene.changes), scene.owner)
    with site.serving() as web:
        with listener_process(web.port, job, scene.tokens) as first:
            first.grow(WARM_UP_LISTENERS)
            for _ in range(WARM_UP_CHANGES):
                first.change()
        let_pass(SETTLE_SECONDS)  # until the web process has noticed that they disconnected
        with listener_process(web.port, job, scene.tokens) as listeners:
            listeners.grow(measurements.count)
            seconds = [listeners.change() for _ in range(scene.changes)]
            measurements.memory.append(memory_of(web.pid))
    measurements.seconds += seconds
    return median(seconds)


class ListenerProcess:
    """Listeners in a separate process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.messages: Queue[dict[str, Any]] = Queue()
        self.reader = Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.messages.put(json.loads(line))
        self.messages.put({"ended": True})

    def send_line(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def expect(self, name: str) -> Any:
        message = self.messages.get(timeout=LIMIT_SECONDS)
        assert name in message, message
        return message[name]

    def grow(self, more: int) -> None:
        self.send_line(str(more))
        assert self.expect("listening") == more

    def change(self) -> float:
        """Finish a chunk. Return the seconds until all listeners have received the event."""
        time.sleep(random.uniform(0, POLL_SECONDS))
        claim = claim_one(backend="bench")
        assert claim
        began = time.monotonic()
        progress = transitions.finish([(claim, result_of(claim))])
        assert progress
        assert progress.chunks == 1
        transitions.free_slots([claim.token])
        last: float = self.expect("last")
        return last - began

    def disconnect(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(LIMIT_SECONDS)
        self.reader.join(LIMIT_SECONDS)


@contextmanager
def listener_process(port: int, job: Job, tokens: list[str]) -> Iterator[ListenerProcess]:
    target = {"host": LOOPBACK, "port": port, "path": f"/exports/{job.pk}/events", "tokens": tokens}
    command = [sys.executable, "-m", "tests.bench.listeners_clients"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        listeners = ListenerProcess(process)
        try:
            listeners.send_line(json.dumps(target))
            yield listeners
            listeners.disconnect()
        finally:
            process.kill()  # no effect on an exited process


def memory_of(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


# ---- Report --------------------------------------------------------------------------------------------------------


def report_results(report: Report, one: ListenerMeasurements, many: ListenerMeasurements) -> None:
    report.times("P10", {each.name: each.seconds for each in (one, many)})
    for each in (one, many):
        report.series[f"P10 bytes of the web process with {each.name}"] = [float(value) for value in each.memory]
    report.table(
        "P10, the web process",
        ["", "memory, MB: median", "range"],
        [
            [
                each.name,
                f"{median(each.memory) / 1e6:.1f}",
                f"{min(each.memory) / 1e6:.1f} to {max(each.memory) / 1e6:.1f}",
            ]
            for each in (one, many)
        ],
    )
    changes = f"of {len(many.seconds)} changes"
    slowest = f"from a change to its receipt by the slowest of {many.name}"
    report.bound("P10", f"{slowest}: the median {changes}", median(many.seconds), MAX_SECONDS, unit="s")
    report.bound("P10", f"{slowest}: the slowest {changes}", max(many.seconds), MAX_SECONDS, unit="s")
    report.bound(
        "P10", f"from a change to its receipt by {one.name}: the median {changes}", median(one.seconds), unit="s"
    )
    more = many.count - one.count
    kilobytes = median((after - before) / more / 1000 for before, after in zip(one.memory, many.memory, strict=True))
    report.bound("P10", "memory per listener", kilobytes, MAX_KILOBYTES, unit="kB")
