"""P10: 500 listeners of one job's events against one, each time of a fresh web process, in turn. Bars: a change reaches
the slowest of them within 2 s of its commit; a listener costs at most 100 kB of memory.

Changes are chunks that end, by the statement that workers end them with, each at some moment of the half second between
two looks of the web process at what is new. The clock begins before the statement that makes the change and commits it,
and stops when all of the event is with the last of the listeners, who are in a process of their own.
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
from config.platform.http.sse import MOST_OF_A_USER, POLL_SECONDS
from exports.models import Dataset, Job
from exports.worker import leases, transitions
from tests.bench import site
from tests.bench.report import Report
from tests.bench.turns import in_turn
from tests.integration.factories import pairs, result_of
from tests.waiting import let_pass

MOST_SECONDS, MOST_KILOBYTES = 2.0, 100.0
# Whatever a web process makes once, for its first requests and streams, is no cost of a listener.
FIRST, FIRST_CHANGES = 20, 2
SETTLE_SECONDS = 2.0
LIMIT_SECONDS = 120
FILES = 4096  # that a process may have open; half of it is for streams


@dataclass
class Listening:
    """So many listeners, and what was measured of them: seconds by change, and bytes of the web process by round."""

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
    # The owner may have some streams only, as everybody; staff may listen too. With some to spare for who just left.
    staff = [User.objects.create_user(f"staff{n}", is_staff=True) for n in range(-(-count // MOST_OF_A_USER) + 2)]
    scene = Scene(
        dataset=site.make_dataset("listeners", "listeners.nobody_calls_it"),
        owner=owner,
        tokens=[site.token_of(user) for user in staff],
        changes=changes,
    )
    one, many = Listening(1), Listening(count)
    ways = {each.name: partial(measure, each, scene) for each in (one, many)}
    in_turn(ways, rounds=rounds, warm_up=False)  # each warms up its own web process
    tell(report, one, many)


def allow_files() -> None:
    """Allow this process, and those that it starts, as many open files as so many streams take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        assert hard == resource.RLIM_INFINITY or hard >= FILES, f"no more than {hard} files may be open"
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))


# ---- Measuring ------------------------------------------------------------------------------------------------------


def measure(listening: Listening, scene: Scene) -> float:
    """Have listeners come to a fresh web process, and changes happen. Returns the median of the changes' seconds."""
    job = site.submit(scene.dataset, pairs(FIRST_CHANGES + scene.changes), scene.owner)
    with site.serving() as web:
        with crowd(web.port, job, scene.tokens) as first:
            first.grow(FIRST)
            for _ in range(FIRST_CHANGES):
                first.change()
        let_pass(SETTLE_SECONDS)  # until the web process has seen them leave
        with crowd(web.port, job, scene.tokens) as listeners:
            listeners.grow(listening.count)
            seconds = [listeners.change() for _ in range(scene.changes)]
            listening.memory.append(memory_of(web.pid))
    listening.seconds += seconds
    return median(seconds)


class Crowd:
    """Listeners in a process of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: Queue[dict[str, Any]] = Queue()
        self.reader = Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.told.put(json.loads(line))
        self.told.put({"ended": True})

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self, name: str) -> Any:
        told = self.told.get(timeout=LIMIT_SECONDS)
        assert name in told, told
        return told[name]

    def grow(self, more: int) -> None:
        self.say(str(more))
        assert self.hear("listening") == more

    def change(self) -> float:
        """End a chunk. Returns the seconds until all of them have heard of it."""
        time.sleep(random.uniform(0, POLL_SECONDS))
        claim = leases.claim(backend="bench")
        assert claim
        began = time.monotonic()
        progress = transitions.finish([(claim, result_of(claim))])
        assert progress
        assert progress.chunks == 1
        last: float = self.hear("last")
        return last - began

    def leave(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(LIMIT_SECONDS)
        self.reader.join(LIMIT_SECONDS)


@contextmanager
def crowd(port: int, job: Job, tokens: list[str]) -> Iterator[Crowd]:
    place = {"host": LOOPBACK, "port": port, "path": f"/exports/{job.pk}/events", "tokens": tokens}
    command = [sys.executable, "-m", "tests.bench.listeners_crowd"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        listeners = Crowd(process)
        try:
            listeners.say(json.dumps(place))
            yield listeners
            listeners.leave()
        finally:
            process.kill()  # does nothing to one that has ended


def memory_of(pid: int) -> int:
    """Return the bytes of memory that a process has in use."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


# ---- Telling --------------------------------------------------------------------------------------------------------


def tell(report: Report, one: Listening, many: Listening) -> None:
    report.times("P10", {each.name: each.seconds for each in (one, many)})
    for each in (one, many):
        report.series[f"P10 bytes of the web process with {each.name}"] = [float(value) for value in each.memory]
    report.table(
        "P10, the web process",
        ["", "memory, MB: median", "from, to"],
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
    slowest = f"a change to the slowest of {many.name}"
    report.bar("P10", f"{slowest}: the median {changes}", median(many.seconds), MOST_SECONDS, unit="s")
    report.bar("P10", f"{slowest}: the slowest {changes}", max(many.seconds), MOST_SECONDS, unit="s")
    report.bar("P10", f"a change to {one.name}: the median {changes}", median(one.seconds), unit="s")
    more = many.count - one.count
    kilobytes = median((after - before) / more / 1000 for before, after in zip(one.memory, many.memory, strict=True))
    report.bar("P10", "memory of a listener", kilobytes, MOST_KILOBYTES, unit="kB")
