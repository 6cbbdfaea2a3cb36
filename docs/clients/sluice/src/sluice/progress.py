"""How far it is: a bar on a terminal, a line now and then in a log, nothing when it shall be quiet."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from sluice.terminal import Terminal, clean, duration, number, size

LINE_SECONDS = 5.0


class Shown(NamedTuple):
    """What is shown of an export or document."""

    status: str
    percent: float
    detail: str


def of_export(job: dict[str, Any]) -> Shown:
    """`190 of 1,095 slices · 58,000 rows · 5.8 MB · 0:42 left · 3 retrying · 1 failed`."""
    told = job["progress"]
    ended = told["done"] + told["failed"] + told["cancelled"]
    parts = [f"{number(ended)} of {number(told['total'])} slices"]
    if told["rows"] or told["bytes"]:
        parts += [f"{number(told['rows'])} rows", size(told["bytes"])]
    if told["etaSeconds"] is not None:
        parts.append(f"{duration(told['etaSeconds'])} left")
    parts += [f"{number(told[name])} {name}" for name in ("retrying", "failed", "reused", "degraded") if told[name]]
    if job["status"] == "pending" and job.get("queuePosition"):
        parts.append(f"{number(job['queuePosition'])} before it")
    return Shown(job["status"], told["percent"], " · ".join(parts))


STAGES = {"pending": "waiting for its turn", "mineru_parsing": "reading", "llm_processing": "applying the rule"}


def of_document(task: dict[str, Any]) -> Shown:
    return Shown(task["status"], task["progress"], STAGES.get(task["status"], ""))


class Screen(AbstractContextManager["Screen"]):
    """Shows progress to the end of the `with`."""

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
            self.terminal.say(f"{self.title}: {shown.status} {shown.percent:.0f} %  {shown.detail}".rstrip())

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()


class Bar(Progress):
    """A bar, and a line below it: beside it there is no room on a narrow terminal."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(clean(self.below), style="dim")
