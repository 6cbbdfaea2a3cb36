"""Progress display: a bar on a terminal, else a line every few seconds. Nothing with --quiet."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from sluice.cli.terminal import Terminal, clean, duration, number, size
from sluice.models import Batch, Export, Task

LINE_SECONDS = 5.0
COUNTS = ("retrying", "failed", "reused", "degraded")


class ProgressLine(NamedTuple):
    """The displayed progress of an export, document, or batch."""

    status: str
    percent: float
    detail: str


def of_export(export: Export) -> ProgressLine:
    """Return, for example, `190 of 1,095 chunks · 58,000 rows · 5.8 MB · 0:42 left · 3 retrying · 1 failed`."""
    progress = export.progress
    ended = progress.done + progress.failed + progress.cancelled
    parts = [f"{number(ended)} of {number(progress.total)} chunks"]
    if progress.rows or progress.bytes:
        parts += [f"{number(progress.rows)} rows", size(progress.bytes)]
    if progress.eta_seconds is not None:
        parts.append(f"{duration(progress.eta_seconds)} left")
    parts += counted(progress, COUNTS)
    if export.status == "pending" and export.queue_position:
        parts.append(f"{number(export.queue_position)} ahead in the queue")
    return ProgressLine(export.status, progress.percent, " · ".join(parts))


def counted(counts: Any, names: Iterable[str]) -> list[str]:
    """Return the counts that are not zero, such as `3 retrying`."""
    return [f"{number(getattr(counts, name))} {name}" for name in names if getattr(counts, name)]


def of_download(done: int, total: int) -> ProgressLine:
    return ProgressLine("", 100 * done / total if total else 100, f"{size(done)} of {size(total)}")


STAGES = {"pending": "waiting", "mineru_parsing": "parsing", "llm_processing": "applying the rule"}


def of_document(task: Task) -> ProgressLine:
    return ProgressLine(task.status, task.progress, STAGES.get(task.status, ""))


def of_batch(batch: Batch) -> ProgressLine:
    return ProgressLine(batch.status, 100 * batch.ended / batch.total, counts_of(batch))


def counts_of(batch: Batch) -> str:
    """Return, for example, `180 of 240 completed · 2 failed`."""
    done = f"{number(batch.completed)} of {number(batch.total)} completed"
    return " · ".join([done, *counted(batch, ("failed", "cancelled", "deleted"))])


class Screen(AbstractContextManager["Screen"]):
    """A context manager that displays progress."""

    def __init__(self, terminal: Terminal, title: str) -> None:
        self.terminal, self.title = terminal, title
        self.last, self.at = ProgressLine("", -1, ""), 0.0
        self.bar: Bar | None = None

    def __enter__(self) -> Self:
        console = self.terminal.err
        if console.is_terminal and not console.is_dumb_terminal and not self.terminal.quiet:
            columns = TextColumn("{task.description}"), BarColumn(bar_width=None), TaskProgressColumn()
            self.bar = Bar(*columns, console=console, expand=True, refresh_per_second=4, transient=True)
            self.bar.add_task(clean(self.title), total=100)
            self.bar.start()
        return self

    def show(self, shown: ProgressLine) -> None:
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
    """A progress bar with a status line below it, because both would not fit in one line of a narrow terminal."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(clean(self.below), style="dim")
