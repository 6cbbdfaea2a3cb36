"""Progress: a bar on a terminal, a line every few seconds in a log, nothing with --quiet."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from sluice.cli.terminal import Terminal, clean, duration, number, size

LINE_SECONDS = 5.0
COUNTS = ("retrying", "failed", "reused", "degraded")


class Shown(NamedTuple):
    """The displayed progress of an export or document."""

    status: str
    percent: float
    detail: str


def of_export(job: dict[str, Any]) -> Shown:
    """`190 of 1,095 chunks · 58,000 rows · 5.8 MB · 0:42 left · 3 retrying · 1 failed`."""
    progress = job["progress"]
    ended = progress["done"] + progress["failed"] + progress["cancelled"]
    parts = [f"{number(ended)} of {number(progress['total'])} chunks"]
    if progress["rows"] or progress["bytes"]:
        parts += [f"{number(progress['rows'])} rows", size(progress["bytes"])]
    if progress["etaSeconds"] is not None:
        parts.append(f"{duration(progress['etaSeconds'])} left")
    parts += [
        f"{number(progress[name])} {name}" for name in ("retrying", "failed", "reused", "degraded") if progress[name]
    ]
    if job["status"] == "pending" and job.get("queuePosition"):
        parts.append(f"{number(job['queuePosition'])} ahead in the queue")
    return Shown(job["status"], progress["percent"], " · ".join(parts))


STAGES = {"pending": "waiting", "mineru_parsing": "parsing", "llm_processing": "applying the rule"}


def of_document(task: dict[str, Any]) -> Shown:
    return Shown(task["status"], task["progress"], STAGES.get(task["status"], ""))


class Screen(AbstractContextManager["Screen"]):
    """A context manager that displays progress."""

    def __init__(self, terminal: Terminal, title: str) -> None:
        self.terminal, self.title = terminal, title
        self.last, self.at = Shown("", -1, ""), 0.0
        self.bar: Bar | None = None

    def __enter__(self) -> Self:
        console = self.terminal.err
        if console.is_terminal and not console.is_dumb_terminal and not self.terminal.quiet:
            columns = TextColumn("{task.description}"), BarColumn(bar_width=None), TaskProgressColumn()
            self.bar = Bar(*columns, console=console, expand=True, refresh_per_second=4, transient=True)
            self.bar.add_task(clean(self.title), total=100)
            self.bar.start()
        return self

    def show(self, shown: Shown) -> None:
        if self.bar:
            self.bar.below = f"{shown.status}  {shown.detail}"
            self.bar.update(self.bar.task_ids[0], completed=shown.percent)
        elif shown != self.last and (shown.status != self.last.status or time.monotonic() - self.at > LINE_SECONDS):
            self.at, self.last = time.monotonic(), shown
            self.terminal.info(f"{self.title}: {shown.status} {shown.percent:.0f} %  {shown.detail}".rstrip())

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()


class Bar(Progress):
    """A progress bar with a status line below it, which would not fit beside it on a narrow terminal."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(clean(self.below), style="dim")
