"""Lists: a table, or JSON lines with --json."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from sluice.cli.session import Session
from sluice.errors import Problem

MOST = 200  # results per page

Limit = Annotated[int, typer.Option("--limit", min=1, help="The maximum number of results.")]


def print_list(
    session: Session,
    columns: tuple[str, ...],
    results: Iterator[dict[str, Any]],
    row: Callable[[dict[str, Any]], tuple[str, ...]],
) -> None:
    try:
        if session.terminal.as_json:
            for each in results:
                session.terminal.line(each)
        else:
            session.terminal.table(columns, map(row, results))
    except Problem as problem:
        problem.locate(lambda pointer: pointer.replace("/", "--", 1))
        raise
