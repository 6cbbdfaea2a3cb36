"""Progress: a live bar on a terminal, or a line per second in a log."""

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LINE_SECONDS = 1.0
REFRESHES_PER_SECOND = 5  # drawing takes CPU time from the workers
MEGABYTE = 1_000_000


class Amount(NamedTuple):
    """The finished amount: chunks or files, their rows, and their bytes."""

    done: int
    rows: int
    size: int


Show = Callable[[Amount], None]


def console() -> Console:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without ✓ must not cause an error
    # With FORCE_COLOR set, Rich treats a CI log as a terminal: use colors there, but no live bar.
    plain = Console(highlight=False)
    return Console(highlight=False, force_interactive=sys.stdout.isatty() and not plain.is_dumb_terminal)


@contextmanager
def progress(console: Console, *, total: int, unit: str, began: float | None = None) -> Iterator[Show]:
    """Yield a function that displays an amount. `began`: the start of the work, by `time.monotonic`."""
    began = time.monotonic() if began is None else began
    with (bar if console.is_interactive else lines)(console, total=total, unit=unit, began=began) as show:
        yield show


@contextmanager
def bar(console: Console, *, total: int, unit: str, began: float) -> Iterator[Show]:
    columns = TextColumn(" "), BarColumn(bar_width=None), TextColumn("{task.description}")
    with Progress(*columns, console=console, expand=True, refresh_per_second=REFRESHES_PER_SECOND) as live:
        task = live.add_task(figures(Amount(0, 0, 0), total=total, unit=unit, seconds=0), total=total)

        def show(amount: Amount) -> None:
            text = figures(amount, total=total, unit=unit, seconds=time.monotonic() - began)
            live.update(task, completed=amount.done, description=text)

        yield show


@contextmanager
def lines(console: Console, *, total: int, unit: str, began: float) -> Iterator[Show]:
    printed, last = began, -1

    def show(amount: Amount) -> None:
        nonlocal printed, last
        now = time.monotonic()
        if now - printed >= LINE_SECONDS or last < amount.done == total:
            printed, last = now, amount.done
            text = figures(amount, total=total, unit=unit, seconds=now - began)
            console.print(f"   {now - began:4.1f} s {text}", soft_wrap=True)

    yield show


def figures(amount: Amount, *, total: int, unit: str, seconds: float) -> str:
    """`512 of 1,095 chunks  157,002 rows   3.1 MB/s  5 s left`, in fixed columns."""
    width = len(f"{total:,}")
    rate = amount.size / MEGABYTE / seconds if seconds else 0
    left = f"{seconds / amount.done * (total - amount.done):.0f} s left" if 0 < amount.done < total else ""
    return f"{amount.done:{width},} of {total:,} {unit} {amount.rows:8,} rows {rate:5.1f} MB/s {left:>9}"
