"""Output of lists: a table, or JSON lines with --json."""

from collections.abc import Callable, Iterator
from typing import Annotated, TypeVar

import typer

from sluice.cli.errors import located, option
from sluice.cli.session import Session

R = TypeVar("R")

Limit = Annotated[int, typer.Option("--limit", min=1, help="The maximum number of results.")]


def print_list(
    session: Session,
    columns: tuple[str, ...],
    results: Iterator[R],
    row: Callable[[R], tuple[str, ...]],
) -> None:
    with located(option):
        if session.terminal.as_json:
            for each in results:
                session.terminal.line(getattr(each, "raw", each))
        else:
            session.terminal.table(columns, map(row, results))
