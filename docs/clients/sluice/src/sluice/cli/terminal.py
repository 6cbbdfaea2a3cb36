"""Output: data to stdout, messages to stderr, and color only on terminals that support it."""

import io
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sluice import exact_json

# Control characters that a terminal would interpret: names, texts, and messages are untrusted.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLORS = {
    "success": "green", "done": "green", "completed": "green", "active": "green",
    "failed": "red", "cancelled": "yellow", "retrying": "yellow",
}  # fmt: skip


class Terminal:
    """The output streams of one command."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, debug: bool = False) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a character that the locale lacks must not cause an error
        self.as_json, self.quiet, self.is_debug = as_json, quiet, debug
        self.out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.err = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def info(self, *lines: str) -> None:
        if not self.quiet:
            self.print_err(*lines)

    def print_err(self, *lines: str, style: str = "") -> None:
        """Print to stderr even with --quiet."""
        for line in lines:
            self.err.print(Text(clean(line), style=style))

    def debug(self, line: str) -> None:
        if self.is_debug:
            self.print_err(line, style="dim")

    def put(self, *lines: str) -> None:
        for line in lines:
            self.out.print(Text(clean(line)))

    def json(self, document: Any) -> None:
        """Write one JSON document, indented on a terminal, otherwise in one line."""
        self.line(document, indent=2 if self.out.is_terminal else None)

    def line(self, document: Any, *, indent: int | None = None) -> None:
        text = exact_json.dumps(document, indent=indent)
        # `json` does not escape all characters that a terminal would interpret.
        self.write(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")

    def write(self, text: str) -> None:
        """Write text as UTF-8 in any locale, because JSON is UTF-8."""
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()

    def table(self, names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table. Columns are as wide as their content, so that no cell is truncated, not even in a pipe."""
        cells = [list(names), *([clean(cell).replace("\n", " ") for cell in row] for row in rows)]
        widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
        for number, row in enumerate(cells):
            line = Text(style="bold" if number == 0 else "")
            for cell, width in zip(row, widths, strict=True):
                line.append(cell + " " * (width - cell_len(cell) + 2), style=COLORS.get(cell, ""))
            line.rstrip()
            self.out.print(line)

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Print one name and value per line."""
        shown = [(name, value) for name, value in pairs if value]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.put(f"{name:{width}}  {value}")


def clean(text: str) -> str:
    """Replace control characters that a terminal would interpret."""
    return CONTROL.sub("�", text)


def number(value: Any) -> str:
    return "" if value is None else f"{value:,}"


def size(value: Any) -> str:
    """Return, for example, `33.2 MB`."""
    if value is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:  # noqa: PLR2004 - SI
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def moment(time: datetime | str | None) -> str:
    """Return a time to the second, such as `2026-11-22 08:00:00Z`."""
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    return f"{time:%Y-%m-%d %H:%M:%SZ}" if time else ""


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
