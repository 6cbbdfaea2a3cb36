"""The console, and a progress bar: live on a terminal, only its last state in a log."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

REFRESHES_PER_SECOND = 5  # drawing takes CPU time from the workers


class Totals(NamedTuple):
    """The totals so far: finished chunks or files, their rows, and their bytes."""

    done: int
    rows: int
    size: int


Show = Callable[[Totals], None]


def console() -> Console:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without ✓ must not cause an error
    # With FORCE_COLOR set, Rich treats a CI log as a terminal: use colors there, but no live bar.
    plain = Console(highlight=False)
    return Console(highlight=False, force_interactive=sys.stdout.isatty() and not plain.is_dumb_terminal)


@contextmanager
def progress(console: Console, *, total: int, unit: str) -> Iterator[Show]:
    """Yield a function that displays totals."""
    columns = (
        BarColumn(bar_width=None),
        TextColumn(f"{{task.completed:,}} of {{task.total:,}} {unit}  {{task.fields[rows]:,}} rows"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, expand=True, refresh_per_second=REFRESHES_PER_SECOND) as live:
        task = live.add_task("", total=total, rows=0)
        yield lambda totals: live.update(task, completed=totals.done, rows=totals.rows)
